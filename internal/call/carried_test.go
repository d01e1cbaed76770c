package call

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
)

// An endable stream has an empty request. It reports what is called after the end was sent.
type endable struct {
	requesting
	t     *testing.T
	ended atomic.Bool
}

func (s *endable) check() {
	if s.ended.Load() {
		s.t.Error("the carrier is used after the call has ended")
	}
}

func (s *endable) Send(f *link.Frame) error {
	s.check()
	s.ended.Store(f.End != nil)
	return nil
}

func (s *endable) Recv(f *link.Frame) error { s.check(); return s.requesting.Recv(f) }

// A kept is what a handler of a unary method gets, and may keep for as long as it likes.
type kept struct {
	ctx context.Context
	dec func(any) error
}

// keeping returns a service whose method Unary runs handler.
func keeping(handler func(kept) (any, error)) *grpc.ServiceDesc {
	d := desc
	d.Methods = []grpc.MethodDesc{{MethodName: "Unary", Handler: func(_ any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		return handler(kept{ctx, dec})
	}}}
	return &d
}

// calls serves one call of method on s, and returns its connection.
func calls(t *testing.T, d *grpc.ServiceDesc, method string, s link.Stream) *serverConn {
	server := NewServer(ServerConfig{MaxRecv: defaultMaxRecv, MaxSend: noLimit})
	server.Register(d, handlers{}, nil)
	c := server.Accept(distant{}).(*serverConn)
	if err := c.HandleStream(s, &link.CallHeader{Profile: &link.Profile{}, Method: method}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Closed(errStopped)
		server.workers.close()
	})
	return c
}

// What a handler has kept does not reach the carrier after the call.
func TestWhatAHandlerHasKeptDoesNotUseTheCarrierLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &endable{t: t}
		var k kept
		c := calls(t, keeping(func(got kept) (any, error) { k = got; return new(message), nil }), unaryMethod, s)
		synctest.Wait()
		if !s.ended.Load() {
			t.Fatal("the call has not ended")
		}
		if err := k.dec(new(message)); status.Code(err) != codes.Canceled {
			t.Errorf("to receive the request fails with %v, want Canceled", err)
		}
		for what, err := range map[string]error{
			"SendHeader": grpc.SendHeader(k.ctx, metadata.Pairs("k", "v")),
			"SetHeader":  grpc.SetHeader(k.ctx, metadata.Pairs("k", "v")),
			"SetTrailer": grpc.SetTrailer(k.ctx, metadata.Pairs("k", "v")),
		} {
			if err == nil {
				t.Errorf("%s succeeds", what)
			}
		}
		if k.ctx.Err() != context.Canceled {
			t.Errorf("the context's error is %v", k.ctx.Err())
		}
		c.Closed(errStopped)
	})
}
