package mux

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/wire"
)

// A message of at least minPlaced bytes goes into memory that the peer can read, instead of
// through the connection. It is encoded there directly; the receiver makes the only copy.
const minPlaced = wire.MinPlace

// encodeInPlace encodes m, which is [message.Message.Sized], into a place. It returns no buffer if
// it has set the place in step, or if no place is free. If the encoded message does not fit the
// place, or is smaller than minPlaced, it returns the bytes in a buffer, as step.Message.
func (s *Session) encodeInPlace(step *wire.Step, m *message.Message) (*buffer, error) {
	room, at, ok := s.placer.Place(m.Bound())
	if !ok {
		return nil, nil
	}
	fits := false
	defer func() { // deferred, because the codec may panic
		if fits {
			s.placer.Placed(at)
		} else {
			s.placer.Done(at)
		}
	}()
	b, err := m.Append(room)
	switch {
	case err != nil:
		return nil, err
	case len(b) < minPlaced: // the message shrank below the minimum
		small := newBuffer(len(b))
		small.B = append(small.B, b...)
		step.Message = small.B
		return small, nil
	case &b[0] != &room[:1][0]: // Append has allocated: the message did not fit
		step.Message = b
		return &buffer{B: b}, nil
	}
	fits = true
	step.Placed, step.Place, step.Size = true, at, len(b)
	return nil, nil
}

// draft implements [link.Caps.Draft].
func (s *Session) draft(n int) (b []byte, end func()) {
	if n < minPlaced {
		return nil, nil
	}
	b, at, ok := s.placer.Draft(n)
	if !ok {
		return nil, nil
	}
	return b[:n], func() { s.placer.Done(at) }
}

// unplace frees the place of a step that will not be sent.
func (s *Session) unplace(step *wire.Step) {
	if step.Placed {
		step.Placed = false
		_ = s.placer.Returned(step.Place)
	}
}

// A place holds a message from the peer until it is fetched. The memory stays valid, even after
// the connection has closed, until the place is dropped. drop tells the peer that it may reuse the
// memory. If a place becomes unreachable before it is dropped, a cleanup returns it.
type place struct {
	session *Session
	at      int
	lost    runtime.Cleanup
}

// placeOf returns the place of a message that has arrived, and holds it.
func (s *Session) placeOf(rc *wire.Received) (*place, error) {
	if err := s.placer.Hold(rc.Place, rc.Size); err != nil {
		return nil, fmt.Errorf("%w: %w", wire.ErrProtocol, err)
	}
	p := &place{session: s, at: rc.Place}
	p.lost = runtime.AddCleanup(p, s.returnPlace, rc.Place)
	return p, nil
}

// returnPlace returns the place of a message that became unreachable before it was fetched.
func (s *Session) returnPlace(at int) {
	s.placer.Release(at)
	s.mu.Lock()
	s.sendReturnLocked(at)
	s.flushLocked(false)
	s.mu.Unlock()
}

// sendReturnLocked tells the peer that it may reuse its place.
func (s *Session) sendReturnLocked(at int) {
	if s.life.Reason() == nil {
		s.writing.control = wire.AppendReturn(s.writing.control, at)
	}
}

// dropLocked returns the place, whether or not its message was fetched. p may be nil.
func (p *place) dropLocked() {
	if p != nil {
		p.lost.Stop()
		p.session.placer.Release(p.at)
		p.session.sendReturnLocked(p.at)
	}
}

// fetch copies the item's message into private memory, where the peer cannot change it
// while it is decoded, and returns the place. The error is a *message.RecvError.
func fetch(it *item) error {
	p := it.Extra.place
	if p == nil {
		return nil
	}
	s := p.session
	var b *buffer
	err := s.placer.Check(p.at)
	if err == nil {
		b = s.keeper.NewBuffer(it.Size, it.Compressed)
		err = s.placer.Fetch(b.B, p.at)
	}
	if err != nil {
		b.Free()
		b = nil
		if !errors.Is(err, link.ErrExhausted) {
			err = fmt.Errorf("it cannot be read from shared memory: %w", err)
		}
		err = &message.RecvError{Err: err}
	}
	it.Data, it.Extra.place = b, nil
	s.mu.Lock()
	p.dropLocked()
	s.flushLocked(false)
	s.mu.Unlock()
	return err
}

// dropPlacesLocked returns the places of messages that have arrived and will not be received.
func (in *inbox) dropPlacesLocked() {
	for i := range in.Items {
		if it := &in.Items[i]; it.Extra.place != nil {
			it.Extra.place.dropLocked()
			it.Extra.place, it.Message = nil, false
		}
	}
}
