package test

import (
	"context"
	"fmt"
	"io"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
)

func TestCallsOfEachKindReachTheirHandlers(t *testing.T) {
	cancellable, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, ctx := range []context.Context{context.Background(), cancellable} {
		for name, opts := range map[string][]nearcall.ServerOption{
			"auto": nil, "inline": {nearcall.HandlerPlacement(nearcall.Inline)}, "workers": {nearcall.HandlerPlacement(nearcall.Workers)},
		} {
			t.Run(fmt.Sprintf("%s/cancellable=%v", name, ctx.Done() != nil), func(t *testing.T) {
				client, _ := connect(t, serve(t, echo{}, opts...))
				reply, err := client.UnaryCall(ctx, &testpb.SimpleRequest{Payload: payload(32)})
				if err != nil || len(reply.Payload.Body) != 32 {
					t.Fatalf("unary call: %v, %v", reply, err)
				}
				testServerStream(ctx, t, client)
				testClientStream(ctx, t, client)
				testBidiStream(ctx, t, client)
			})
		}
	}
}

func testServerStream(ctx context.Context, t *testing.T, client testpb.TestServiceClient) {
	s, err := client.StreamingOutputCall(ctx, &testpb.StreamingOutputCallRequest{Payload: payload(32)})
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; ; n++ {
		_, err := s.Recv()
		if err == io.EOF && n == 100 {
			return
		}
		if err != nil {
			t.Fatalf("after %d messages of 100: %v", n, err)
		}
	}
}

func testClientStream(ctx context.Context, t *testing.T, client testpb.TestServiceClient) {
	s, err := client.StreamingInputCall(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		if err := s.Send(&testpb.StreamingInputCallRequest{Payload: payload(i)}); err != nil {
			t.Fatal(err)
		}
	}
	reply, err := s.CloseAndRecv()
	if err != nil || reply.AggregatedPayloadSize != 99*100/2 {
		t.Fatal(reply, err)
	}
}

func testBidiStream(ctx context.Context, t *testing.T, client testpb.TestServiceClient) {
	s, err := client.FullDuplexCall(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		if err := s.Send(&testpb.StreamingOutputCallRequest{Payload: payload(i)}); err != nil {
			t.Fatal(err)
		}
		reply, err := s.Recv()
		if err != nil || len(reply.Payload.GetBody()) != i {
			t.Fatal(reply, err)
		}
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err != io.EOF {
		t.Fatal(err)
	}
}

// A client can send 64 KiB, gRPC's window, before it receives. A bound on messages
// instead of bytes would deadlock here.
func TestAStreamBuffersAsManyBytesAsGRPC(t *testing.T) {
	client, _ := connect(t, serve(t, echo{}))
	s, err := client.FullDuplexCall(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const n = 1000
	for range n {
		if err := s.Send(&testpb.StreamingOutputCallRequest{Payload: payload(32)}); err != nil {
			t.Fatal(err)
		}
	}
	for range n {
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
	}
}

// The window blocks a sender whose peer does not receive.
func TestASenderIsHeldBack(t *testing.T) {
	sent := make(chan int)
	client, _ := connect(t, serve(t, echo{bidi: func(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
		n := 0
		for s.Send(&testpb.StreamingOutputCallResponse{Payload: payload(1024)}) == nil {
			n++
		}
		sent <- n
		return nil
	}}))
	ctx, cancel := context.WithCancel(t.Context())
	s, err := client.FullDuplexCall(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	cancel()
	if n := <-sent; n > 200 {
		t.Errorf("the handler sent %d KiB to a client that received one; the window is 64", n)
	}
}

func BenchmarkUnary(b *testing.B) {
	cancellable, cancel := context.WithCancel(b.Context())
	defer cancel()
	for _, bench := range []struct {
		name string
		ctx  context.Context
		opts []nearcall.ServerOption
	}{
		{"Background", context.Background(), nil},
		{"Cancellable", cancellable, nil},
		{"CancellableInline", cancellable, []nearcall.ServerOption{nearcall.HandlerPlacement(nearcall.Inline)}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			client, _ := connect(b, serve(b, echo{}, bench.opts...))
			req := &testpb.SimpleRequest{Payload: payload(32)}
			b.ReportAllocs()
			for b.Loop() {
				if reply, err := client.UnaryCall(bench.ctx, req); err != nil || len(reply.Payload.Body) != 32 {
					b.Fatal(reply, err)
				}
			}
		})
	}
}

func BenchmarkServerStream(b *testing.B) {
	client, _ := connect(b, serve(b, echo{}))
	req := &testpb.StreamingOutputCallRequest{Payload: payload(32)}
	b.ReportAllocs()
	for b.Loop() {
		s, err := client.StreamingOutputCall(b.Context(), req)
		if err != nil {
			b.Fatal(err)
		}
		for n := 0; ; n++ {
			if _, err := s.Recv(); err == io.EOF && n == 100 {
				break
			} else if err != nil {
				b.Fatal(n, err)
			}
		}
	}
}

func BenchmarkBidiEcho(b *testing.B) {
	client, _ := connect(b, serve(b, echo{}))
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
		if reply, err := s.Recv(); err != nil || len(reply.Payload.Body) != 32 {
			b.Fatal(reply, err)
		}
	}
}

// Messages are shared if both sides have promised not to modify them, and only then.
func TestMessagesAreSharedWhereBothSidesAskForIt(t *testing.T) {
	server, client := []nearcall.ServerOption{nearcall.ImmutableMessages()}, []nearcall.DialOption{nearcall.WithImmutableMessages()}
	for name, test := range map[string]struct {
		server []nearcall.ServerOption
		client []nearcall.DialOption
		shared bool
	}{
		"both":        {server, client, true},
		"server only": {server, nil, false},
		"client only": {nil, client, false},
		"neither":     {nil, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			var at *testpb.Payload
			client, _ := connect(t, serve(t, echo{unary: func(_ context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
				at = in.Payload
				return &testpb.SimpleResponse{Payload: in.Payload}, nil
			}}, test.server...), test.client...)
			for _, ctx := range []context.Context{context.Background(), t.Context()} {
				p := payload(32)
				reply, err := client.UnaryCall(ctx, &testpb.SimpleRequest{Payload: p})
				if err != nil {
					t.Fatal(err)
				}
				if (at == p) != test.shared || (reply.Payload == p) != test.shared {
					t.Errorf("shared with the handler: %v, and back: %v; want %v", at == p, reply.Payload == p, test.shared)
				}
			}
			s, err := client.FullDuplexCall(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var sent []*testpb.Payload
			for i := range 40 { // more than the receiver takes at once
				sent = append(sent, payload(i))
				if err := s.Send(&testpb.StreamingOutputCallRequest{Payload: sent[i]}); err != nil {
					t.Fatal(err)
				}
			}
			for i := range sent {
				reply, err := s.Recv()
				if err != nil || len(reply.Payload.Body) != i || (reply.Payload == sent[i]) != test.shared {
					t.Fatalf("message %d: %v, shared: %v", i, err, reply.GetPayload() == sent[i])
				}
			}
		})
	}
}

func TestSharedMessagesHaveLimits(t *testing.T) {
	client, _ := connect(t, serve(t, echo{}, nearcall.ImmutableMessages()), nearcall.WithImmutableMessages())
	_, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: payload(5 << 20)})
	wantCode(t, err, codes.ResourceExhausted)
}

// Sharing only reads a message, so many calls can share one.
func TestManyCallsShareOneMessage(t *testing.T) {
	client, _ := connect(t, serve(t, echo{}, nearcall.ImmutableMessages()), nearcall.WithImmutableMessages())
	req := &testpb.SimpleRequest{Payload: payload(32)}
	done := make(chan error)
	for range 8 {
		go func() {
			var err error
			for range 200 {
				if _, err = client.UnaryCall(t.Context(), req); err != nil {
					break
				}
			}
			done <- err
		}()
	}
	for range 8 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
