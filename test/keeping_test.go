package test

import (
	"bytes"
	"context"
	"testing"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
)

// Large messages that a program holds do not change when others arrive, and may be changed
// without changing others.
func TestLargeMessagesBelongToTheirReceiver(t *testing.T) {
	for _, network := range networks("unix", "tcp") {
		t.Run(network, func(t *testing.T) {
			var held [][]byte
			lis := listenFor(t, network, echo{unary: func(_ context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
				held = append(held, in.Payload.Body)
				return &testpb.SimpleResponse{Payload: in.Payload}, nil
			}})
			client := dial(t, lis.Target())
			want := func(i, n int) []byte { return bytes.Repeat([]byte{byte(i + 1)}, n) }
			sizes := []int{300_000, 1 << 20, 3 << 20, 100}
			var replies [][]byte
			for i := range 24 {
				out, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: &testpb.Payload{Body: want(i, sizes[i%len(sizes)])}})
				if err != nil {
					t.Fatal(err)
				}
				replies = append(replies, append(out.Payload.Body, 'x')[:len(out.Payload.Body)])
			}
			for i := range replies {
				w := want(i, sizes[i%len(sizes)])
				if !bytes.Equal(replies[i], w) {
					t.Errorf("reply %d has changed", i)
				}
				if !bytes.Equal(held[i], w) {
					t.Errorf("request %d has changed", i)
				}
			}
		})
	}
}

// A header that a program has received belongs to it, also where nothing was sent in it.
func TestHeadersBelongToTheirReceiver(t *testing.T) {
	for _, network := range networks("unix", "tcp") {
		t.Run(network, func(t *testing.T) {
			client := dial(t, listenFor(t, network, echo{}).Target(), over(network)...)
			for range 2 {
				var unary metadata.MD
				if _, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{}, grpc.Header(&unary)); err != nil {
					t.Fatal(err)
				}
				s, err := client.StreamingOutputCall(t.Context(), &testpb.StreamingOutputCallRequest{})
				if err != nil {
					t.Fatal(err)
				}
				streamed, err := s.Header()
				if err != nil {
					t.Fatal(err)
				}
				for _, md := range []metadata.MD{unary, streamed} {
					if len(md["mine"]) > 0 {
						t.Errorf("a header has what was written to another: %v", md)
					}
					md.Set("mine", "value")
				}
				for err == nil {
					_, err = s.Recv()
				}
			}
		})
	}
}
