package mux

import (
	"runtime"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

// leastPlaced is from what length on a message is put into memory that the peer
// sees, instead of sent through the connection, in bytes. It is encoded there,
// and copied once, by whoever receives it.
const leastPlaced = 32 << 10

// put encodes m, of about n bytes, in a place of its own. Where there is none it
// returns nothing, and where m has become larger than n its bytes.
func (s *Session) put(step *wire.Step, m *link.Message, n int) (*buffer, error) {
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
	if err != nil {
		return nil, err
	}
	if len(b) == 0 || &b[0] != &room[:1][0] { // it did not fit, or the codec has memory of its own
		step.Message = b
		return &buffer{b}, nil
	}
	fits = true
	step.Placed, step.Place, step.Size = true, at, len(b)
	return nil, nil
}

// unplace takes the message of a step back that is not sent.
func (s *Session) unplace(step *wire.Step) {
	if step.Placed {
		step.Placed = false
		_ = s.placer.Returned(step.Place)
	}
}

// A place is where a message of the peer's is that was not fetched yet. The peer
// learns when it may be used again, at the latest when nobody can fetch from it
// any more.
type place struct {
	session *Session
	at      int
	lost    runtime.Cleanup
}

// placeOf returns the place of a message that has arrived.
func (s *Session) placeOf(rc *wire.Received) (*place, error) {
	if err := s.placer.Check(rc.Place, rc.Size); err != nil {
		return nil, err
	}
	p := &place{session: s, at: rc.Place}
	p.lost = runtime.AddCleanup(p, s.giveUp, rc.Place)
	return p, nil
}

// giveUp returns a place that nobody knows of any more.
func (s *Session) giveUp(at int) {
	s.mu.Lock()
	s.handBack(at)
	s.flush(false)
}

// handBack has the peer learn that its place may be used again. mu is held.
func (s *Session) handBack(at int) {
	if s.ended == nil {
		s.control = wire.AppendReturn(s.control, at)
	}
}

// drop returns a place whose message is not wanted. It may be nil. The session's
// mu is held.
func (p *place) drop() {
	if p != nil {
		p.lost.Stop()
		p.session.handBack(p.at)
	}
}

// fetch has the item's message in memory of this side's own, where nobody changes
// it while it is looked at.
func (it *item) fetch() error {
	p := it.place
	if p == nil {
		return nil
	}
	s := p.session
	b := newBuffer(it.size)
	b.b = b.b[:it.size]
	p.lost.Stop()
	if err := s.placer.Fetch(b.b, p.at); err != nil {
		s.fail(err)
		return err
	}
	it.data, it.place = b, nil
	s.mu.Lock()
	s.handBack(p.at)
	s.flush(false)
	return nil
}
