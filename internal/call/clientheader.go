package call

import (
	"context"

	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
)

// The header of a client's stream: whoever receives makes it known, and whoever wants
// it receives, or waits for the goroutine that does.

// Header implements grpc.ClientStream. It waits for the header; where the call
// ends without one it returns nil, nil, and RecvMsg has the status.
func (s *clientStream) Header() (metadata.MD, error) {
	s.receiveUntil(func() bool { return s.headerKnown }, s.receiveHeader)
	s.mu.Lock()
	defer s.mu.Unlock()
	return fullHeader(s.header, s.info.subtype), nil
}

// receiveUntil waits until known, which is called with mu held: it calls
// receive, with recvMu held, or waits for another goroutine that receives and
// brings the header, the end or another attempt along.
func (s *clientStream) receiveUntil(known func() bool, receive func()) {
	is := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return known()
	}
	for !is() {
		if s.recvMu.TryLock() {
			receive()
			s.recvMu.Unlock()
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
		_ = p.Park(context.Background()) // whoever ends the call makes its header known
		w.Release(p)
	}
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
			s.recvErr = nil // RecvMsg has the status as it arrived, as in grpc-go
		}
		s.finish(err)
	} else if s.end != nil {
		// Without a header there is no message either. That the end is a good
		// one and a reply is missing is for RecvMsg to say.
		s.finish(s.end.Status.Err())
	}
}

func (s *clientStream) onHeader(md metadata.MD) {
	s.refusal = s.info.checkReply(md)
	s.recvAttempt.stats.inHeader(md, s.info.subtype)
	s.setHeader(md)
}

// setHeader makes md known: the header, or nil where there is none, which a
// header that was on its way when the call was given up still overrules.
func (s *clientStream) setHeader(md metadata.MD) {
	s.mu.Lock()
	if md != nil || !s.headerKnown {
		s.header, s.headerKnown = md, true
	}
	waiting := s.headerWaiters
	s.headerWaiters = nil
	if s.finished && md != nil { // given up before it was received
		s.info.fillOptions(s.current.peer, s.header, s.trailer)
	}
	s.mu.Unlock()
	for _, p := range waiting {
		p.Unpark()
	}
}
