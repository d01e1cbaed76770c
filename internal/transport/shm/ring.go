package shm

import (
	"errors"
	"fmt"
)

// A word is a number in shared memory, which one side writes and the other
// reads: an atomic.Uint64. Its operations are sequentially consistent, on which
// all that follows depends.
type word interface {
	Load() uint64
	Store(uint64)
}

// Two sides of a ring, and how neither sleeps through what the other does.
//
// A ring's bytes and tail are the sender's, its head the receiver's. Both
// cursors only grow; what is between them has been sent and not received. Each
// side keeps its own cursors to itself, and publishes copies.
//
// A receiver that finds nothing publishes that it sleeps (an odd number in
// asleep), looks at tail again, and only then sleeps. A sender publishes tail,
// then looks at asleep, and rings the bell where it is odd. Each stores before
// it loads, so that in the one order that all these operations have one of the
// two loads comes after the other's store: either the sender sees that the
// receiver sleeps, or the receiver sees what was sent. A sender that waits for
// room in a full ring does the same, with wants in asleep's place and head in
// tail's.
//
// A bell is rung once for each sleep, whose number tells it from the next. One
// that is rung for a receiver that has just found by itself what there is wakes
// it from a later sleep, for nothing.
//
// So a side hears no more bells than it has slept times: a peer that rings more
// often is wrong. And no side that hears all bells that have arrived is woken for
// nothing three times in a row. The first time may be for bells left over from
// earlier sleeps, and the second for what the peer had published before that and
// only then rings for. It does not ring again before it publishes more.

// errBroken is wrapped by the errors of what a peer must not write.
var errBroken = errors.New("the peer breaks the rules of shared memory")

// A sender is the end of a ring that bytes are put into.
type sender struct {
	ring  []byte // its length is a power of two
	tail  word
	wants word // of the peer's bell, for room

	head   word // the peer's
	asleep word // the peer's

	sent     uint64
	received uint64 // what head was last
	waits    uint64 // what wants is
	rung     uint64 // what asleep was when the bell was rung last
	heard    uint64 // bells for room
}

// room returns how many bytes can be put. It looks at how far the peer has got
// where that is less than n.
func (s *sender) room(n int) (int, error) {
	room := len(s.ring) - int(s.sent-s.received)
	if room >= n {
		return room, nil
	}
	head := s.head.Load()
	if head-s.received > s.sent-s.received {
		return 0, fmt.Errorf("%w: it has received %d bytes, after %d of the %d that were sent", errBroken, head, s.received, s.sent)
	}
	s.received = head
	return len(s.ring) - int(s.sent-head), nil
}

// put copies into the ring what there is room for, and returns how much that
// was. The peer does not see it before it is published.
func (s *sender) put(b []byte) (int, error) {
	room, err := s.room(len(b))
	if err != nil {
		return 0, err
	}
	b = b[:min(len(b), room)]
	at := int(s.sent & uint64(len(s.ring)-1))
	n := copy(s.ring[at:], b)
	copy(s.ring, b[n:])
	s.sent += uint64(len(b))
	return len(b), nil
}

// publish lets the peer see what was put. It reports whether its bell has to be
// rung.
func (s *sender) publish() bool {
	released()
	s.tail.Store(s.sent)
	return mustRing(s.asleep, &s.rung)
}

// mustRing reports whether w says that the peer sleeps, and it was not rung for
// that before.
func mustRing(w word, rung *uint64) bool {
	v := w.Load()
	if v&1 == 0 || v == *rung {
		return false
	}
	*rung = v
	return true
}

// countBells adds the bells that woke a side up to those that it has heard. w is what the
// word of its sleeps is, which is even.
func countBells(heard *uint64, bells int, w uint64) error {
	if *heard += uint64(bells); *heard > w/2 {
		return fmt.Errorf("%w: it has rung %d times for %d sleeps", errBroken, *heard, w/2)
	}
	return nil
}

// maxIdleWakes is how many times in a row a side may be woken for nothing. A peer that
// follows the rules does that twice at most, unless more than maxHeard bells are
// left over.
const maxIdleWakes = 16

// checkIdleWakes is the error where a side was woken for nothing n times in a row.
func checkIdleWakes(n int) error {
	if n <= maxIdleWakes {
		return nil
	}
	return fmt.Errorf("%w: it has rung %d times in a row for nothing", errBroken, n)
}

// startWaiting publishes that the sender waits for room. It reports whether it may:
// otherwise there is some.
func (s *sender) startWaiting() (bool, error) {
	s.waits++
	s.wants.Store(s.waits)
	room, err := s.room(1)
	if err != nil || room > 0 {
		s.stopWaiting()
		return false, err
	}
	return true, nil
}

// stopWaiting publishes that the sender does not wait for room any more.
func (s *sender) stopWaiting() {
	s.waits++
	s.wants.Store(s.waits)
}

// wokenBy is goOn for a sender that so many bells woke up.
func (s *sender) wokenBy(bells int) error {
	s.stopWaiting()
	return countBells(&s.heard, bells, s.waits)
}

// A receiver is the end of a ring that bytes are taken out of. They are the
// peer's to change at any time, and are copied before anybody looks at them.
type receiver struct {
	ring   []byte // its length is a power of two
	head   word
	asleep word

	tail  word // the peer's
	wants word // the peer's

	received uint64
	sent     uint64 // what tail was last
	sleeps   uint64 // what asleep is
	rung     uint64 // what wants was when the bell was rung last
	heard    uint64 // bells for bytes
}

// ready returns how many bytes there are.
func (r *receiver) ready() (int, error) {
	tail := r.tail.Load()
	if n := tail - r.received; n < r.sent-r.received || n > uint64(len(r.ring)) {
		return 0, fmt.Errorf("%w: it has sent %d bytes, after %d, of which %d were received", errBroken, tail, r.sent, r.received)
	}
	r.sent = tail
	return int(tail - r.received), nil
}

// read copies what there is out of the ring, or as much as b has room for. It
// returns how much that was, and whether the peer's bell has to be rung, as it
// waits for room.
func (r *receiver) read(b []byte) (n int, bell bool, err error) {
	n, err = r.ready()
	if n == 0 || err != nil {
		return 0, false, err
	}
	acquired()
	b = b[:min(n, len(b))]
	at := int(r.received & uint64(len(r.ring)-1))
	n = copy(b, r.ring[at:])
	copy(b[n:], r.ring)
	r.received += uint64(len(b))
	r.head.Store(r.received)
	// A peer that waits has filled the ring: it is woken when half of it is
	// empty, which it will be, as everything is received.
	if int(r.sent-r.received) <= len(r.ring)/2 {
		bell = mustRing(r.wants, &r.rung)
	}
	return len(b), bell, nil
}

// startSleeping publishes that the receiver sleeps. It reports whether it may:
// otherwise there is something to receive.
func (r *receiver) startSleeping() (bool, error) {
	r.sleeps++
	r.asleep.Store(r.sleeps)
	n, err := r.ready()
	if n > 0 || err != nil {
		r.stopSleeping()
		return false, err
	}
	return true, nil
}

// stopSleeping publishes that the receiver does not sleep any more.
func (r *receiver) stopSleeping() {
	r.sleeps++
	r.asleep.Store(r.sleeps)
}

// wokenBy is wakeUp for a receiver that so many bells woke up.
func (r *receiver) wokenBy(bells int) error {
	r.stopSleeping()
	return countBells(&r.heard, bells, r.sleeps)
}
