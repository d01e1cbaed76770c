// Package interopclient runs the cases of grpc-go's interop client against its interop server.
package interopclient

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/encoding/gzip"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/neartest/interop"
	"google.golang.org/grpc/neartest/shim/grpc"
	"google.golang.org/grpc/neartest/shim/testutils"
)

func dial(t *testing.T) (*grpc.ClientConn, context.Context) {
	lis, err := testutils.LocalTCPListener()
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	testgrpc.RegisterTestServiceServer(s, interop.NewTestServer())
	go s.Serve(lis)
	t.Cleanup(s.Stop)
	cc, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return cc, ctx
}

type interopCase func(context.Context, testgrpc.TestServiceClient, ...grpc.CallOption)

// run runs a case. If the case fails, the process exits.
func run(t *testing.T, f interopCase, opts ...grpc.CallOption) {
	cc, ctx := dial(t)
	f(ctx, testgrpc.NewTestServiceClient(cc), opts...)
}

func gzipped(t *testing.T, f interopCase) { run(t, f, grpc.UseCompressor("gzip")) }

func TestEmptyUnaryCall(t *testing.T)           { run(t, interop.DoEmptyUnaryCall) }
func TestLargeUnaryCall(t *testing.T)           { run(t, interop.DoLargeUnaryCall) }
func TestLargeUnaryCallGzip(t *testing.T)       { gzipped(t, interop.DoLargeUnaryCall) }
func TestClientStreaming(t *testing.T)          { run(t, interop.DoClientStreaming) }
func TestClientStreamingGzip(t *testing.T)      { gzipped(t, interop.DoClientStreaming) }
func TestServerStreaming(t *testing.T)          { run(t, interop.DoServerStreaming) }
func TestServerStreamingGzip(t *testing.T)      { gzipped(t, interop.DoServerStreaming) }
func TestPingPong(t *testing.T)                 { run(t, interop.DoPingPong) }
func TestPingPongGzip(t *testing.T)             { gzipped(t, interop.DoPingPong) }
func TestEmptyStream(t *testing.T)              { run(t, interop.DoEmptyStream) }
func TestTimeoutOnSleepingServer(t *testing.T)  { run(t, interop.DoTimeoutOnSleepingServer) }
func TestCancelAfterBegin(t *testing.T)         { run(t, interop.DoCancelAfterBegin) }
func TestCancelAfterFirstResponse(t *testing.T) { run(t, interop.DoCancelAfterFirstResponse) }
func TestCustomMetadata(t *testing.T)           { run(t, interop.DoCustomMetadata) }
func TestStatusCodeAndMessage(t *testing.T)     { run(t, interop.DoStatusCodeAndMessage) }
func TestSpecialStatusMessage(t *testing.T)     { run(t, interop.DoSpecialStatusMessage) }

func TestUnimplementedService(t *testing.T) {
	cc, ctx := dial(t)
	interop.DoUnimplementedService(ctx, testgrpc.NewUnimplementedServiceClient(cc))
}

func TestUnimplementedMethod(t *testing.T) {
	cc, ctx := dial(t)
	interop.DoUnimplementedMethod(ctx, cc)
}
