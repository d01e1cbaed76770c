package nearcall_test

import (
	"context"
	"io"
	"testing"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
)

type server struct {
	testpb.UnimplementedTestServiceServer
}

func (server) UnaryCall(_ context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return &testpb.SimpleResponse{Payload: in.Payload}, nil
}

func (server) FullDuplexCall(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	for {
		in, err := s.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.Send(&testpb.StreamingOutputCallResponse{Payload: in.Payload}); err != nil {
			return err
		}
	}
}

func (server) StreamingOutputCall(in *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	for range 100 {
		if err := s.Send(&testpb.StreamingOutputCallResponse{Payload: in.Payload}); err != nil {
			return err
		}
	}
	return nil
}

func newTestClient(t testing.TB, opts ...nearcall.ServerOption) testpb.TestServiceClient {
	srv := nearcall.NewServer(opts...)
	testpb.RegisterTestServiceServer(srv, server{})
	conn := srv.Client()
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		srv.Stop()
	})
	return testpb.NewTestServiceClient(conn)
}

func payload(n int) *testpb.Payload { return &testpb.Payload{Body: make([]byte, n)} }

func TestCallsReachTheirHandlers(t *testing.T) {
	client := newTestClient(t)
	cancellable, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, ctx := range []context.Context{context.Background(), cancellable} {
		reply, err := client.UnaryCall(ctx, &testpb.SimpleRequest{Payload: payload(32)})
		if err != nil || len(reply.Payload.Body) != 32 {
			t.Fatalf("unary call: %v, %v", reply, err)
		}
		down, err := client.StreamingOutputCall(ctx, &testpb.StreamingOutputCallRequest{Payload: payload(32)})
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for {
			_, err := down.Recv()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		if n != 100 {
			t.Fatalf("%d messages, want 100", n)
		}
		both, err := client.FullDuplexCall(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 200 {
			if err := both.Send(&testpb.StreamingOutputCallRequest{Payload: payload(i)}); err != nil {
				t.Fatal(err)
			}
			reply, err := both.Recv()
			if err != nil || len(reply.Payload.Body) != i {
				t.Fatal(reply, err)
			}
		}
		if err := both.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if _, err := both.Recv(); err != io.EOF {
			t.Fatal(err)
		}
	}
}

func BenchmarkUnary(b *testing.B) {
	cancellable, cancel := context.WithCancel(b.Context())
	defer cancel()
	for name, ctx := range map[string]context.Context{"Background": context.Background(), "Cancellable": cancellable} {
		b.Run(name, func(b *testing.B) {
			client := newTestClient(b)
			req := &testpb.SimpleRequest{Payload: payload(32)}
			b.ReportAllocs()
			for b.Loop() {
				if reply, err := client.UnaryCall(ctx, req); err != nil || len(reply.Payload.Body) != 32 {
					b.Fatal(reply, err)
				}
			}
		})
	}
}

func BenchmarkServerStream(b *testing.B) {
	client := newTestClient(b)
	req := &testpb.StreamingOutputCallRequest{Payload: payload(32)}
	b.ReportAllocs()
	for b.Loop() {
		s, err := client.StreamingOutputCall(b.Context(), req)
		if err != nil {
			b.Fatal(err)
		}
		for {
			if _, err := s.Recv(); err == io.EOF {
				break
			} else if err != nil {
				b.Fatal(err)
			}
		}
	}
}

func BenchmarkBidiEcho(b *testing.B) {
	client := newTestClient(b)
	req := &testpb.StreamingOutputCallRequest{Payload: payload(32)}
	s, err := client.FullDuplexCall(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Send(req); err != nil {
			b.Fatal(err)
		}
		if _, err := s.Recv(); err != nil {
			b.Fatal(err)
		}
	}
}
