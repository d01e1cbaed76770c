package test

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
)

// A caller whose goroutine runs the handler is released when the handler returns, with
// the code that other callers get at once.
func TestStopAndCloseWaitForNobodyButInlineCallersDo(t *testing.T) {
	for name, test := range map[string]struct {
		end  func(*nearcall.Server, *nearcall.ClientConn)
		want codes.Code
	}{
		"Stop":  {func(s *nearcall.Server, _ *nearcall.ClientConn) { s.Stop() }, codes.Unavailable},
		"Close": {func(_ *nearcall.Server, c *nearcall.ClientConn) { _ = c.Close() }, codes.Canceled},
	} {
		for caller, inline := range map[string]bool{"background": true, "cancellable": false, "background, HandlerPlacement(Workers)": false} {
			t.Run(name+"/"+caller, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					running, release := make(chan context.Context, 1), make(chan struct{})
					var opts []nearcall.ServerOption
					if caller == "background, HandlerPlacement(Workers)" {
						opts = append(opts, nearcall.HandlerPlacement(nearcall.Workers))
					}
					srv := serve(t, echo{unary: func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
						running <- ctx
						<-release // ignores its context
						return &testpb.SimpleResponse{}, nil
					}}, opts...)
					client, conn := connect(t, srv)
					ctx := context.Background()
					if caller == "cancellable" {
						ctx = t.Context()
					}
					call := invoke(ctx, client)
					handlers := <-running
					test.end(srv, conn)
					synctest.Wait()
					if err := handlers.Err(); err != context.Canceled {
						t.Errorf("the handler's context ends with %v", err)
					}
					if waits := len(call) == 0; waits != inline {
						t.Errorf("the caller waits for the handler: %t, want %t", waits, inline)
					}
					close(release)
					wantCode(t, <-call, test.want)
				})
			})
		}
	}
}

func TestStopWaitsForHandlersWhenAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		running, release := make(chan struct{}), make(chan struct{})
		returned := false
		srv := serve(t, echo{unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			close(running)
			<-release // ignores its context
			returned = true
			return &testpb.SimpleResponse{}, nil
		}}, nearcall.WaitForHandlers(true))
		client, _ := connect(t, srv)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		call := invoke(ctx, client)
		<-running
		time.AfterFunc(time.Second, func() { close(release) })
		srv.Stop()
		if !returned {
			t.Error("Stop returned before the handler")
		}
		wantCode(t, <-call, codes.Unavailable)
	})
}

func TestServeReportsAClosedListener(t *testing.T) {
	lis, err := nearcall.Listen("inproc:closed-below")
	if err != nil {
		t.Fatal(err)
	}
	srv := serve(t, echo{})
	served := make(chan error)
	go func() { served <- srv.Serve(lis) }()
	_ = lis.Close()
	if err := <-served; err == nil {
		t.Error("Serve returned nil though nobody stopped the server")
	}
}

// A closesOnce is a user's listener that counts Close calls.
type closesOnce struct {
	net.Listener
	accepting chan struct{} // of capacity 1; filled when Accept is called
	fail      chan error    // makes Accept fail
	closed    atomic.Int32
}

func newClosesOnce(lis net.Listener) *closesOnce {
	return &closesOnce{Listener: lis, accepting: make(chan struct{}, 1), fail: make(chan error, 1)}
}

func (l *closesOnce) Accept() (net.Conn, error) {
	select {
	case l.accepting <- struct{}{}:
	default:
	}
	accepted := make(chan error, 1)
	var conn net.Conn
	go func() {
		c, err := l.Listener.Accept()
		conn = c
		accepted <- err
	}()
	select {
	case err := <-accepted:
		return conn, err
	case err := <-l.fail:
		_ = l.Listener.Close()
		<-accepted
		return nil, err
	}
}

func (l *closesOnce) Close() error {
	l.closed.Add(1)
	return l.Listener.Close()
}

func TestServeClosesItsListenerOnce(t *testing.T) {
	broken := errors.New("the listener is broken")
	for _, from := range []string{"net", "Listen"} {
		for name, test := range map[string]struct {
			end  func(*nearcall.Server, *closesOnce)
			want []error // Serve returns one of these
		}{
			"Stop":                   {func(s *nearcall.Server, _ *closesOnce) { s.Stop() }, []error{nil}},
			"GracefulStop":           {func(s *nearcall.Server, _ *closesOnce) { s.GracefulStop() }, []error{nil}},
			"both at once":           {func(s *nearcall.Server, _ *closesOnce) { go s.GracefulStop(); s.Stop() }, []error{nil}},
			"Accept fails":           {func(_ *nearcall.Server, l *closesOnce) { l.fail <- broken }, []error{broken}},
			"Accept fails in a Stop": {func(s *nearcall.Server, l *closesOnce) { l.fail <- broken; s.Stop() }, []error{nil, broken}},
		} {
			t.Run(from+"/"+name, func(t *testing.T) {
				srv := serve(t, echo{})
				var listeners []*closesOnce
				var served []chan error
				for range 3 { // each served by its own Serve
					inner := listenTCP(t)
					if from == "Listen" {
						inner = listen(t, "tcp:127.0.0.1:0")
					}
					l, done := newClosesOnce(inner), make(chan error, 1)
					listeners, served = append(listeners, l), append(served, done)
					go func() { done <- srv.Serve(l) }()
					outcome(t, "Accept", l.accepting)
				}
				for i, l := range listeners {
					test.end(srv, l)
					err := outcome(t, "Serve", served[i])
					if !slices.Contains(test.want, err) {
						t.Errorf("Serve returns %v, want one of %v", err, test.want)
					}
				}
				srv.Stop()
				srv.GracefulStop()
				for _, l := range listeners {
					if n := l.closed.Load(); n != 1 {
						t.Errorf("the listener was closed %d times", n)
					}
				}
			})
		}
	}
}

func TestServeAfterStopClosesItsListenerOnce(t *testing.T) {
	srv := serve(t, echo{})
	srv.Stop()
	l := newClosesOnce(listenTCP(t))
	if err := srv.Serve(l); err != grpc.ErrServerStopped {
		t.Errorf("Serve returns %v", err)
	}
	srv.Stop()
	if n := l.closed.Load(); n != 1 {
		t.Errorf("the listener was closed %d times", n)
	}
}

// A server does not close a listener that another server serves.
func TestAListenerThatAnotherServerServesIsLeftAlone(t *testing.T) {
	lis := listen(t, "inproc:served-twice")
	start(t, serve(t, echo{}), lis)
	client := dial(t, lis.Target())
	wantCode(t, <-invoke(t.Context(), client), codes.OK)
	second := nearcall.NewServer()
	if err := second.Serve(lis); err == nil {
		t.Error("a second server serves the listener")
	}
	second.Stop()
	if again, err := nearcall.Listen("inproc:served-twice"); err == nil {
		_ = again.Close()
		t.Error("the second server has closed the listener of the first")
	}
	wantCode(t, <-invoke(t.Context(), client), codes.OK)
}
