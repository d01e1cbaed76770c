package nearcall_test

import (
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/nearcall/nearcall"
)

// A closesOnce is a listener of the user's that must be closed once.
type closesOnce struct {
	net.Listener
	accepting chan struct{} // has room for one; filled when Accept is called
	fail      chan error    // ends an Accept
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
			want []error // of which Serve returns one
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
				for range 3 { // each has a Serve
					inner := listenTCP(t)
					if from == "Listen" {
						inner = listen(t, "tcp:127.0.0.1:0")
					}
					l, done := newClosesOnce(inner), make(chan error, 1)
					listeners, served = append(listeners, l), append(served, done)
					go func() { done <- srv.Serve(l) }()
					<-l.accepting
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
