package server

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/testing/callservice"
)

// A freeable stream has an empty request. It counts how often it is freed, and callservice.Reports what is
// called after that.
type freeable struct {
	requesting
	t     *testing.T
	freed atomic.Int32

	// Unless it is nil, Recv and Abort wait until it is closed, and inside counts those that
	// wait.
	block  chan struct{}
	inside atomic.Int32
}

func (s *freeable) Free() { s.freed.Add(1) }

func (s *freeable) enter() {
	s.check()
	if s.block != nil {
		s.inside.Add(1)
		<-s.block
	}
	s.check()
}

func (s *freeable) check() {
	if s.freed.Load() > 0 {
		s.t.Error("the transport stream is used after it was freed")
	}
}

func (s *freeable) Send(*link.Frame) error   { s.check(); return nil }
func (s *freeable) Recv(f *link.Frame) error { s.enter(); return s.requesting.Recv(f) }
func (s *freeable) Abort(error)              { s.enter() }

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
	server := New(limited(0), Config{})
	server.Register(d, handlers{}, nil)
	c := server.Accept(callservice.Distant{}).(*serverConn)
	if err := c.HandleStream(s, &link.CallHeader{Profile: &link.Profile{}, Method: method}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Closed(errStopped)
		server.scheduler.close()
	})
	return c
}

// The transport stream of a unary call is freed once, when the handler has returned. That of a stream is
// not: its handler may have kept the stream. Nor is it after a handler that has exited.
func TestTheCarrierOfAUnaryCallIsFreed(t *testing.T) {
	receives := func(k kept) (any, error) { return new(msg), k.dec(new(msg)) }
	for name, c := range map[string]struct {
		handler func(kept) (any, error)
		method  string
		freed   int32
	}{
		"a reply":        {receives, unaryMethod, 1},
		"an error":       {func(kept) (any, error) { return nil, errors.New("an error") }, unaryMethod, 1},
		"no such method": {receives, "/test.Service/None", 1},
		"a stream":       {receives, streamMethod, 0},
		"an exit":        {func(kept) (any, error) { runtime.Goexit(); return nil, nil }, unaryMethod, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &freeable{t: t}
				calls(t, keeping(c.handler), c.method, s)
				synctest.Wait()
				if n := s.freed.Load(); n != c.freed {
					t.Errorf("it was freed %d times, want %d", n, c.freed)
				}
			})
		})
	}
}

// What a handler has kept does not reach the transport stream after the call.
func TestWhatAHandlerHasKeptDoesNotUseTheCarrierLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &freeable{t: t}
		var k kept
		c := calls(t, keeping(func(got kept) (any, error) { k = got; return new(msg), nil }), unaryMethod, s)
		synctest.Wait()
		if s.freed.Load() != 1 {
			t.Fatal("the transport stream was not freed")
		}
		if err := k.dec(new(msg)); status.Code(err) != codes.Canceled {
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

// A goroutine that still uses the transport stream when the handler returns keeps it from being freed.
func TestTheCarrierIsFreedWhenTheLastUserHasFinished(t *testing.T) {
	for name, use := range map[string]func(kept, *serverConn){
		"the decoder": func(k kept, _ *serverConn) { _ = k.dec(new(msg)) },
		"an abort":    func(_ kept, c *serverConn) { c.Closed(errStopped) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &freeable{t: t, block: make(chan struct{})}
				returns := make(chan struct{})
				got := make(chan kept, 1)
				c := calls(t, keeping(func(k kept) (any, error) {
					got <- k
					<-returns
					return nil, io.ErrUnexpectedEOF
				}), unaryMethod, s)
				go use(<-got, c)
				synctest.Wait()
				if s.inside.Load() != 1 {
					t.Fatal("the transport stream is not used")
				}
				close(returns)
				synctest.Wait()
				if s.freed.Load() != 0 {
					t.Error("the transport stream was freed while it was used")
				}
				close(s.block)
				synctest.Wait()
				if s.freed.Load() != 1 {
					t.Errorf("the transport stream was freed %d times, want once", s.freed.Load())
				}
			})
		})
	}
}
