package test

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
)

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
