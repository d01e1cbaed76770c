package call

import (
	"context"

	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
)

// The goroutine that receives learns the header of a client's stream. A goroutine that needs the
// header receives itself, or waits for the goroutine that does.

// Header implements grpc.ClientStream. It waits for the header. If the call ends without
// one, it returns nil, nil, and RecvMsg returns the status.
func (s *clientStream) Header() (metadata.MD, error) {
	s.receiveUntil(func() bool { return s.headerKnown }, s.receiveHeader)
	s.mu.Lock()
	defer s.mu.Unlock()
	return fullHeader(s.header, s.info.subtype), nil
}

// receiveUntil waits until the function known returns true. If another goroutine receives, it
// waits for that one. Otherwise it calls the function receive, which can make the header or
// another attempt known. known is called with mu held, receive with recvMu held.
func (s *clientStream) receiveUntil(known func() bool, receive func()) {
	is := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return known()
	}
	for !is() {
		if s.tryReceive(receive) {
			continue
		}
		s.mu.Lock()
		if known() {
			s.mu.Unlock()
			return
		}
		w := s.waiter
		if w == nil {
			w = new(wait.Pool)
		}
		p := w.Parker()
		s.headerWaiters = append(s.headerWaiters, p)
		s.mu.Unlock()
		_ = p.Park(context.Background()) // without a context: finish calls setHeader, which unparks
		w.Release(p)
	}
}

// tryReceive calls receive with recvMu held. It returns false if another goroutine holds recvMu.
func (s *clientStream) tryReceive(receive func()) bool {
	if !s.recvMu.TryLock() {
		return false
	}
	defer s.recvMu.Unlock() // also if a stats handler panics
	receive()
	return true
}

// receiveHeader receives until the header is known. recvMu is held.
func (s *clientStream) receiveHeader() {
	if s.end != nil || s.recvErr != nil {
		s.setHeader(nil)
		return
	}
	s.checkContext()
	if _, err := s.receiveFrame(link.Sink{}); err != nil {
		s.recvErr = err
		if s.end != nil {
			s.recvErr = nil // RecvMsg returns the status that arrived, as in grpc-go
		}
		s.finish(err)
	} else if s.end != nil {
		// Without a header no message arrives either. If the status is OK, RecvMsg reports that
		// the reply is missing.
		s.finish(errorOf(s.end.Status))
	}
}

func (s *clientStream) onHeader(md metadata.MD) {
	s.refusal = s.info.checkReply(md)
	s.recvAttempt.stats.inHeader(md, s.info.subtype)
	s.setHeader(md)
}

// setHeader makes the header known and wakes the goroutines that wait for it. A nil md means that
// none was sent. A header that is received after the call has finished still replaces nil.
func (s *clientStream) setHeader(md metadata.MD) {
	s.mu.Lock()
	if md != nil || !s.headerKnown {
		s.header, s.headerKnown = md, true
	}
	waiting := s.headerWaiters
	s.headerWaiters = nil
	if s.finished && md != nil { // the call was finished before its header was received
		s.info.fillOptions(s.current.peer, s.header, s.trailer)
	}
	s.mu.Unlock()
	for _, p := range waiting {
		p.Unpark()
	}
}
