package web

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nearcall/nearcall/internal/counters"
	"github.com/nearcall/nearcall/internal/lifecycle"
	"github.com/nearcall/nearcall/internal/link"
)

const (
	lingering      = time.Second      // how long the rest of a request is read after its answer
	closeTimeout   = 5 * time.Second  // how long a session that ends waits for a peer that takes or sends nothing
	stall          = 30 * time.Second // how long an ended call waits for a peer that takes nothing
	stallCheckTime = time.Second / 2  // how often a connection checks whether the peer takes anything
)

// A session has the calls of a connection of HTTP/1.1, one at a time, or the one call of an exchange.
// It implements [link.Session].
//
// The session ends when Close is called, or when the connection has ended or the request was
// answered. After Close, the answer to the current request, if there is one, is still written.
// Finally the session calls Gone.
type session struct {
	server   *Server
	peer     link.Peer
	conn     *conn                                         // nil for an exchange
	exchange *exchange                                     // nil for a connection
	reads    interface{ SetReadDeadline(time.Time) error } // of the connection, or of the request
	done     chan struct{}
	ended    chan struct{}
	counted  counters.Session // of a connection

	mu          sync.Mutex
	acceptor    link.Acceptor   // nil until open
	stream      *stream         // the call of the current request; nil for none
	life        lifecycle.Life  // its calls are the requests that are being answered
	timer       lifecycle.Timer // of life
	bodyUnread  bool            // no further request can be read from a connection, because a body was not read to its end
	readsClosed bool            // reads have ended, and no deadline may be set for them
	over        bool            // the connection has ended, or belongs to a WebSocket; or the request was answered
}

// open asks for the acceptor, and returns it. It returns nil if the server is stopping.
func (s *session) open(accept func(link.Session) link.Acceptor) link.Acceptor {
	a := accept(s)
	s.mu.Lock()
	s.acceptor = a
	reason := s.life.Reason()
	s.mu.Unlock()
	if a != nil && reason != nil { // it was closed before accept returned
		a.Closed(reason)
	}
	return a
}

var errOneWay = fmt.Errorf("an HTTP/1 client: %w", link.ErrOneWay)

func (s *session) Invoke(context.Context, *link.UnaryCall) error { return link.ErrNoCall }

func (s *session) NewStream(context.Context, *link.CallHeader) (link.Stream, error) {
	return nil, errOneWay
}

func (s *session) Done() <-chan struct{}  { return s.done }
func (s *session) Ended() <-chan struct{} { return s.ended }
func (s *session) Peer() *link.Peer       { return &s.peer }

// Written implements [link.Session]. It is not used, because the peer never serves calls.
func (s *session) Written() <-chan struct{} { return s.ended }

func (s *session) Retire() { s.Drain() }

// Drain implements [link.Session]. A request whose body is still arriving becomes a call at once,
// because the acceptor will take no calls later.
func (s *session) Drain() <-chan struct{} {
	if st := s.leave(); st != nil {
		st.begin()
		st.limitBody()
	}
	return s.done
}

// leave makes the session take no more requests, and returns the current call, if there is one. The
// client learns of it from the answer to its current request. If there is none, leave closes the
// connection, which is idle between requests, or which a browser has opened in advance.
func (s *session) leave() *stream {
	s.mu.Lock()
	idle := s.performLocked(s.life.Retire(errStopping))
	st := s.stream
	s.mu.Unlock()
	if idle {
		_ = s.conn.Conn.Close()
	}
	return st
}

var errStopping = errors.New("the server is going away")

// performLocked does what life says. It reports whether the caller must close the connection, because
// no request is being answered.
func (s *session) performLocked(do lifecycle.Task) (idle bool) {
	if do&lifecycle.RefusePeer != 0 {
		close(s.done)
	}
	if do&lifecycle.Expire != 0 {
		go func() { _ = s.Close(lifecycle.ErrOld) }()
	}
	if do&lifecycle.SetTimer != 0 && s.conn != nil {
		s.timer.Set(s.life.Next(), s.conn.onTimer)
	}
	return do&lifecycle.Finish != 0 && !s.over
}

func (s *session) Close(reason error) error {
	s.mu.Lock()
	do := s.life.End(reason, false)
	if do&lifecycle.EndCalls == 0 {
		s.mu.Unlock()
		return nil
	}
	idle := s.performLocked(do)
	a, st := s.acceptor, s.stream
	s.mu.Unlock()
	if st != nil {
		st.Abort(reason)
	}
	s.counted.End()
	close(s.ended)
	if a != nil {
		a.Closed(reason)
	}
	if idle {
		return s.conn.Conn.Close()
	}
	s.limitWrites()
	if st != nil { // its answer might not be written yet
		s.limitReads(time.Now().Add(closeTimeout))
	} else {
		s.limitReads(time.Now().Add(lingering))
	}
	return nil
}

// serves sets the current call, or nil after it. It returns the reason if the session has ended.
func (s *session) serves(st *stream) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stream = st
	if s.conn != nil {
		s.counted.Begin(false, counters.HTTP)
	}
	return s.life.Reason()
}

// leaves reports whether the answer must say that the connection is closed after it. Over HTTP/2
// package http makes GOAWAY of the answer's field, and needs none for a body that is not read.
func (s *session) leaves() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.performLocked(s.life.PeerAnswers()) // this answer tells the client
	return s.life.Drain() == lifecycle.Refusing || s.bodyUnread && (s.conn != nil || s.exchange.major < 2)
}

// leaveBodyUnread records that the rest of the request will not be read.
func (s *session) leaveBodyUnread() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bodyUnread = true
}

// limitReads makes reads of the request end at t, if they have not ended.
func (s *session) limitReads(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.readsClosed && !s.over {
		_ = s.reads.SetReadDeadline(t)
	}
}

// endReads ends the reads of a request whose body is not needed.
func (s *session) endReads() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bodyUnread, s.readsClosed = true, true
	if !s.over {
		_ = s.reads.SetReadDeadline(time.Now())
	}
}

// limitWrites makes writes of the answer fail once the client has taken nothing for the time stall,
// or for the time closeTimeout if the session has ended. Without this limit a client may take an
// answer when it likes.
func (s *session) limitWrites() {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.over:
	case s.conn != nil:
		s.conn.limitWritesLocked()
	default:
		s.exchange.limitWritesLocked()
	}
}
