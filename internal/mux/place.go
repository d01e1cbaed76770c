package mux

import (
	"fmt"
	"runtime"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

// minPlaced is from what length on a message is put into memory that the peer
// sees, instead of sent through the connection, in bytes. It is encoded there,
// and copied once, by whoever receives it.
const minPlaced = wire.MinPlace

// encodeInPlace encodes m, of about n bytes, in a place of its own. Where there is none it
// returns nothing, and where m has become larger than n, or too small, its bytes.
func (s *Session) encodeInPlace(step *wire.Step, m *link.Message, n int) (*buffer, error) {
	room, at, ok := s.placer.Place(n)
	if !ok {
		return nil, nil
	}
	fits := false
	defer func() { // also where a codec panics
		s.placer.Placed()
		if !fits {
			_ = s.placer.Returned(at)
		}
	}()
	b, err := m.Append(room)
	switch {
	case err != nil:
		return nil, err
	case len(b) < minPlaced: // it has become smaller
		small := newBuffer(len(b))
		small.b = append(small.b, b...)
		step.Message = small.b
		return small, nil
	case &b[0] != &room[:1][0]: // it did not fit
		step.Message = b
		return &buffer{b}, nil
	}
	fits = true
	step.Placed, step.Place, step.Size = true, at, len(b)
	return nil, nil
}

// moveToPlace puts what was encoded in a place of its own, if there is one.
func (s *Session) moveToPlace(step *wire.Step, b *buffer) bool {
	room, at, ok := s.placer.Place(len(b.b))
	if !ok {
		return false
	}
	step.Placed, step.Place, step.Size = true, at, len(append(room, b.b...))
	s.placer.Placed()
	b.free()
	return true
}

// unplace takes the message of a step back that is not sent.
func (s *Session) unplace(step *wire.Step) {
	if step.Placed {
		step.Placed = false
		_ = s.placer.Returned(step.Place)
	}
}

// A place is where a message of the peer's is that was not fetched yet. It is
// held, also when the connection has ended. The peer learns when it may be used
// again, at the latest when nobody can fetch from it any more.
type place struct {
	session *Session
	at      int
	lost    runtime.Cleanup
}

// placeOf returns the place of a message that has arrived.
func (s *Session) placeOf(rc *wire.Received) (*place, error) {
	if err := s.placer.Hold(rc.Place, rc.Size); err != nil {
		return nil, fmt.Errorf("%w: %w", wire.ErrProtocol, err)
	}
	p := &place{session: s, at: rc.Place}
	p.lost = runtime.AddCleanup(p, s.returnPlace, rc.Place)
	return p, nil
}

// returnPlace returns a place that nobody knows of any more.
func (s *Session) returnPlace(at int) {
	s.placer.Release(at)
	s.mu.Lock()
	s.sendReturn(at)
	s.flush(false)
}

// sendReturn tells the peer that it may use its place again. mu is held.
func (s *Session) sendReturn(at int) {
	if s.ended == nil {
		s.control = wire.AppendReturn(s.control, at)
	}
}

// drop returns a place whose message is not wanted. It may be nil. The session's
// mu is held.
func (p *place) drop() {
	if p != nil {
		p.lost.Stop()
		p.session.placer.Release(p.at)
		p.session.sendReturn(p.at)
	}
}

// fetch reads the item's message into memory of this side's own, where nobody
// changes it while it is looked at, and returns its place. The error is a
// *link.RecvError.
func (it *item) fetch() error {
	p := it.place
	if p == nil {
		return nil
	}
	s := p.session
	var b *buffer
	err := s.placer.Check()
	if err == nil {
		b = newBuffer(it.size)
		b.b = b.b[:it.size]
		err = s.placer.Fetch(b.b, p.at)
	}
	if err != nil {
		b.free()
		b = nil
		err = &link.RecvError{Err: fmt.Errorf("it cannot be read where the peer has put it: %w", err)}
	}
	it.data, it.place = b, nil
	s.mu.Lock()
	p.drop()
	s.flush(false)
	return err
}

// dropPlaces returns the places of what has arrived and nobody will receive. The
// session's mu is held.
func (in *inbox) dropPlaces() {
	for i := range in.items {
		if it := &in.items[i]; it.place != nil {
			it.place.drop()
			it.place, it.message = nil, false
		}
	}
}
