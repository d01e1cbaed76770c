package hostile_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/testing/hostile"
	"github.com/nearcall/nearcall/internal/testing/transporttest"
)

// A server is an acceptor that records its calls.
type server struct {
	session link.Session
	streams transporttest.Accepter
	closed  atomic.Int32
	gone    atomic.Int32
	reason  atomic.Value
}

func (s *server) HandleUnary(*link.UnaryCall, bool) error { return link.ErrNoCall }
func (s *server) HandleStream(st link.Stream, o *link.CallHeader) error {
	return s.streams.HandleStream(st, o)
}
func (s *server) Gone()                                     { s.gone.Add(1) }
func (s *server) Terms() link.Terms                         { return link.Terms{} }
func (s *server) Closed(reason error)                       { s.reason.Store(reason); s.closed.Add(1) }
func (s *server) accept(session link.Session) link.Acceptor { s.session = session; return s }
func (s *server) serve(t *testing.T, o hostile.Options) link.Session {
	t.Helper()
	lis := hostile.Listen("orders", o)
	go func() { _ = lis.Sessions(s.accept) }()
	client, err := lis.Dialer().Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = lis.Close() // open sessions stay open
	return client
}

func newServer() *server { return &server{streams: make(transporttest.Accepter, 10)} }

func isDone(s link.Session) bool {
	select {
	case <-s.Done():
		return true
	default:
		return false
	}
}

func says(t *testing.T, err error, words ...string) {
	t.Helper()
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("the error is %v, want %q in it", err, w)
		}
	}
}

func TestListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lis := hostile.Listen("orders", hostile.Options{})
		if lis.Target() != "hostile:orders" || lis.Addr().String() != "orders" || lis.Addr().Network() != "hostile" {
			t.Errorf("target %s, address %v", lis.Target(), lis.Addr())
		}
		_, err := lis.Accept()
		says(t, err, "Server.Serve")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = lis.Dialer().Dial(ctx)
		says(t, err, "no server serves", context.DeadlineExceeded.Error())
		go func() { _ = lis.Sessions(func(link.Session) link.Acceptor { return nil }) }()
		_, err = lis.Dialer().Dial(t.Context())
		says(t, err, "stopped")
		says(t, lis.Sessions(nil), link.ErrServed.Error())
		_ = lis.Close()
		_ = lis.Close()
		_, err = lis.Dialer().Dial(t.Context())
		says(t, err, "closed")
	})
}

func TestCloseEndsBothSides(t *testing.T) {
	errTest := errors.New("the test says so")
	for _, byServer := range []bool{false, true} {
		inBubble(t, map[bool]string{false: "client", true: "server"}[byServer], func(t *testing.T) {
			s := newServer()
			client := s.serve(t, hostile.Options{})
			caller, err := client.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}})
			if err != nil {
				t.Fatal(err)
			}
			callee := <-s.streams
			closer, mine, peers := client, caller, callee
			if byServer {
				closer, mine, peers = s.session, callee, caller
			}
			_ = closer.Close(errTest)
			_ = closer.Close(errors.New("later"))
			synctest.Wait()
			if !isDone(client) || !isDone(s.session) {
				t.Error("a side takes more calls")
			}
			if s.closed.Load() != 1 || s.gone.Load() != 1 {
				t.Errorf("the acceptor was told %d times, %d times that all is gone: %v", s.closed.Load(), s.gone.Load(), s.reason.Load())
			}
			if err := mine.Recv(&link.Frame{}); err != errTest {
				t.Errorf("a stream ends with %v, want the reason", err)
			}
			err = peers.Recv(&link.Frame{})
			says(t, err, "hung up")
			if errors.Is(err, link.ErrUnprocessed) {
				t.Error("a call that was accepted counts as unprocessed")
			}
			if _, err := client.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}}); !errors.Is(err, link.ErrUnprocessed) {
				t.Errorf("Open returns %v, want ErrUnprocessed", err)
			}
		})
	}
}

func TestServerThatClosesWhileItAccepts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		lis := hostile.Listen("orders", hostile.Options{})
		go func() {
			_ = lis.Sessions(func(session link.Session) link.Acceptor {
				_ = session.Close(errors.New("stopping"))
				return s
			})
		}()
		client, err := lis.Dialer().Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if s.closed.Load() != 1 || !isDone(client) {
			t.Errorf("the acceptor was told %d times; done: %t", s.closed.Load(), isDone(client))
		}
		_ = lis.Close()
	})
}

func TestDrainLetsStreamsGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		client := s.serve(t, hostile.Options{})
		caller, err := client.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}})
		if err != nil {
			t.Fatal(err)
		}
		callee := <-s.streams
		s.session.Drain()
		s.session.Drain()
		synctest.Wait()
		if !isDone(client) || !isDone(s.session) {
			t.Error("a side takes more calls")
		}
		if _, err := client.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}}); !errors.Is(err, link.ErrUnprocessed) {
			t.Errorf("Open returns %v, want ErrUnprocessed", err)
		}
		if err := callee.Send(&link.Frame{End: &link.End{}}); err != nil {
			t.Error(err)
		}
		f := &link.Frame{}
		if err := caller.Recv(f); err != nil || f.End == nil {
			t.Errorf("received %+v, %v", f, err)
		}
		_ = client.Close(errors.New("done"))
	})
}

func TestAbortAfterTheEndIsNoAbort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		client := s.serve(t, hostile.Options{})
		caller, err := client.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}})
		if err != nil {
			t.Fatal(err)
		}
		callee := <-s.streams
		for _, st := range []link.Stream{caller, callee} {
			st.OnAbort(func(reason error) { t.Errorf("aborted: %v", reason) })
		}
		if err := callee.Send(&link.Frame{End: &link.End{}}); err != nil {
			t.Fatal(err)
		}
		callee.Abort(context.Canceled)
		f := &link.Frame{}
		if err := caller.Recv(f); err != nil || f.End == nil {
			t.Fatalf("received %+v, %v", f, err)
		}
		caller.Abort(context.Canceled)
		_ = client.Close(errors.New("done"))
		synctest.Wait()
	})
}

func TestCallsAreMadeWithOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		client := s.serve(t, hostile.Options{})
		for _, session := range []link.Session{client, s.session} {
			p := session.Peer()
			if err := session.Invoke(t.Context(), &link.UnaryCall{}); err != link.ErrNoCall || p.OneShot || p.Local {
				t.Errorf("Call returns %v; the peer is %+v", err, p)
			}
			if err := credentials.CheckSecurityLevel(p.AuthInfo, credentials.PrivacyAndIntegrity); err != nil {
				t.Error(err)
			}
		}
		_, err := s.session.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}})
		says(t, err, "takes no calls")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := client.NewStream(ctx, &link.CallHeader{Profile: &link.Profile{}}); err != context.Canceled {
			t.Errorf("Open returns %v, want Canceled", err)
		}
		_ = client.Close(errors.New("done"))
	})
}
