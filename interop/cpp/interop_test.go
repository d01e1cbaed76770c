package cpptest

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
)

// TestInterop runs gRPC's interoperability tests, from grpc-go's client, against a server in C++. A case
// that fails ends the program with its name and the reason.
func TestInterop(t *testing.T) {
	for _, transport := range transports {
		t.Run(transport, func(t *testing.T) {
			cc := dial(t, startCPP(t, transport), transport)
			c := testgrpc.NewTestServiceClient(cc)
			for name, run := range map[string]func(context.Context, testgrpc.TestServiceClient, ...grpc.CallOption){
				"empty_unary":                 interop.DoEmptyUnaryCall,
				"large_unary":                 interop.DoLargeUnaryCall,
				"client_streaming":            interop.DoClientStreaming,
				"server_streaming":            interop.DoServerStreaming,
				"ping_pong":                   interop.DoPingPong,
				"empty_stream":                interop.DoEmptyStream,
				"timeout_on_sleeping_server":  interop.DoTimeoutOnSleepingServer,
				"cancel_after_begin":          interop.DoCancelAfterBegin,
				"cancel_after_first_response": interop.DoCancelAfterFirstResponse,
				"custom_metadata":             interop.DoCustomMetadata,
				"status_code_and_message":     interop.DoStatusCodeAndMessage,
				"special_status_message":      interop.DoSpecialStatusMessage,
			} {
				t.Run(name, func(t *testing.T) {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					run(ctx, c)
				})
			}
			t.Run("unimplemented_service", func(t *testing.T) {
				interop.DoUnimplementedService(t.Context(), testgrpc.NewUnimplementedServiceClient(cc))
			})
			t.Run("unimplemented_method", func(t *testing.T) { // interop's takes a *grpc.ClientConn
				if _, err := c.UnimplementedCall(t.Context(), &testgrpc.Empty{}); status.Code(err) != codes.Unimplemented {
					t.Errorf("got %v, want Unimplemented", err)
				}
			})
		})
	}
}
