package inproc

import (
	"context"
	"errors"
	"sync"

	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
)

// defaultWindow is the initial flow-control window of a gRPC stream, in bytes, and the
// smallest that gRPC allows.
const defaultWindow = 64 << 10

// A session joins a client and a server of one process. The client uses the session itself,
// the server uses it as a *serverSide.
type session struct {
	acceptor link.Acceptor // set once, before the session is used
	peer     link.Peer
	terms    link.Terms
	window   int // the most that the callee may have sent on a stream and the caller not received, in bytes
	parkers  wait.Pool
	done     chan struct{} // closed by Drain and Close
	ended    chan struct{} // closed by Close

	mu       sync.Mutex
	isDone   bool
	isClosed bool
	reason   error // that Close was called with
}

type authInfo struct{ credentials.CommonAuthInfo }

// AuthType implements [credentials.AuthInfo]. It is that of gRPC's local credentials.
func (authInfo) AuthType() string { return "local" }

// ValidateAuthority implements [credentials.AuthorityValidator]. Every authority is valid,
// as there is no certificate to check it against.
func (authInfo) ValidateAuthority(string) error { return nil }

// Options set up a session.
type Options struct {
	// Window is the flow-control window of a stream from server to client, in bytes. The
	// default, and the smallest, is 64 KiB.
	Window int
}

var errStopped = errors.New("the server is stopped")

// Connect opens a session with the server behind accept.
func Connect(name string, o Options, accept func(link.Session) link.Acceptor) (link.Session, error) {
	s := &session{
		window: o.Window,
		done:   make(chan struct{}),
		ended:  make(chan struct{}),
		peer: link.Peer{
			Addr:      Addr(name),
			LocalAddr: Addr(name),
			OneShot:   true,
			Local:     true,
			// Memory of one process is at least as private as a unix socket, which gRPC's
			// local credentials call private.
			AuthInfo: authInfo{credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}},
		},
	}
	a := accept((*serverSide)(s))
	if a == nil {
		return nil, errStopped
	}
	s.mu.Lock()
	s.acceptor = a
	s.terms = a.Terms()
	s.peer.Shares = s.terms.Share
	closed, reason := s.isClosed, s.reason
	s.mu.Unlock()
	if closed {
		a.Closed(reason) // the server closed the session before it was accepted
		a.Gone()
	}
	return s, nil
}

// Invoke implements [link.Session].
func (s *session) Invoke(ctx context.Context, c *link.UnaryCall) error {
	if admit := s.terms.Admit; admit != nil {
		if err := admit(ctx); err != nil {
			return err
		}
	}
	c.Caller = ctx
	if err := s.acceptor.HandleUnary(c, true); err != nil {
		return err
	}
	return c.Wait(&s.parkers)
}

// NewStream implements [link.Session].
func (s *session) NewStream(ctx context.Context, o *link.CallHeader) (link.Stream, error) {
	if admit := s.terms.Admit; admit != nil {
		if err := admit(ctx); err != nil {
			return nil, err
		}
	}
	o.Caller = ctx
	p := newPipe(s.terms.Window, s.window)
	if err := s.acceptor.HandleStream(&p.callee, o); err != nil {
		return nil, err
	}
	return &p.caller, nil
}

// Drain implements [link.Session].
func (s *session) Drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.isDone {
		s.isDone = true
		close(s.done)
	}
}

// Close implements [link.Session].
func (s *session) Close(reason error) error {
	s.Drain()
	s.mu.Lock()
	first, a := !s.isClosed, s.acceptor
	if first {
		s.isClosed, s.reason = true, reason
		close(s.ended)
	}
	s.mu.Unlock()
	if first && a != nil {
		a.Closed(reason)
		a.Gone() // frames that were sent are already in the peer's queues
	}
	return nil
}

// Done implements [link.Session].
func (s *session) Done() <-chan struct{} { return s.done }

// Ended implements [link.Session].
func (s *session) Ended() <-chan struct{} { return s.ended }

// Peer implements [link.Session].
func (s *session) Peer() *link.Peer { return &s.peer }

// serverSide is the session as the server uses it.
type serverSide session

var errOneWay = errors.New("inproc: the client of this session serves nothing")

func (s *serverSide) Invoke(context.Context, *link.UnaryCall) error { return errOneWay }

func (s *serverSide) NewStream(context.Context, *link.CallHeader) (link.Stream, error) {
	return nil, errOneWay
}

func (s *serverSide) Drain()                   { (*session)(s).Drain() }
func (s *serverSide) Close(reason error) error { return (*session)(s).Close(reason) }
func (s *serverSide) Done() <-chan struct{}    { return s.done }
func (s *serverSide) Ended() <-chan struct{}   { return s.ended }
func (s *serverSide) Peer() *link.Peer         { return &s.peer }
