package shm

import (
	"errors"
	"fmt"
)

// A word is a number in shared memory that one side writes and the other reads: a sharedWord. Its
// operations are sequentially consistent; all of the following depends on that.
type word interface {
	Load() uint64
	Store(uint64)
}

// How a ring works, and why no wake-up is lost.
//
// The sender owns a ring's bytes and its tail, the receiver its head. Both cursors only
// grow; the bytes between them have been sent and not received. Each side keeps its own
// cursors in ordinary memory, and publishes copies.
//
// A receiver that finds nothing publishes that it sleeps (an odd number in asleep), loads tail
// again, and only then sleeps. A sender publishes tail, then loads asleep, and wakes the receiver
// if that number is odd. Each side stores before it loads, and all these operations have one order.
// So one of the two loads comes after the other side's store: either the sender sees that the
// receiver sleeps, or the receiver sees what was sent. A sender that waits for room in a full ring
// does the same, with wants in place of asleep and head in place of tail.
//
// One wake-up is sent for each sleep: every sleep has its own odd number. The peer may also
// wake a receiver that was about to sleep and then found bytes at its second look. That wake-up
// stays in the socket, and ends a later sleep too early.
//
// So a side never gets more wake-ups than it had sleeps: a peer that sends more is broken.
// And a side that takes all wake-ups at once wakes without bytes at most twice in a row.
// First, wake-ups left over from earlier sleeps can end its sleep. After them, one more can,
// for bytes that it has already read. The peer sends no other wake-up before it publishes more
// bytes.

// errBroken is wrapped by errors that mean that the peer violates the protocol.
var errBroken = errors.New("the peer breaks the rules of shared memory")

// A sender is the writing end of a ring.
type sender struct {
	ring  []byte // its length is a power of two
	tail  word
	wants word // odd while this side waits for room

	head   word // the peer's
	asleep word // the peer's

	sent      uint64
	received  uint64 // the last value of head
	waits     uint64 // the value of wants
	wakeUpFor uint64 // the value of asleep at the last wake-up
	wakeUps   uint64 // how often the peer has woken this side because the ring has room again

	// extend allocates the next bytes of the ring. It is nil once all of the ring is allocated.
	// paged is the number of bytes that are allocated.
	extend func(more int) error
	paged  int
}

// extendBy is how much of a ring is allocated at a time, in bytes: a connection with little
// traffic needs little.
const extendBy = 32 << 10

// reach allocates as much of the ring as n more bytes need. extend must not be nil.
func (s *sender) reach(n int) error {
	for need := min(int(s.sent)+n, len(s.ring)); s.paged < need; {
		more := min(extendBy, len(s.ring)-s.paged)
		if err := s.extend(more); err != nil {
			return err
		}
		s.paged += more
	}
	if s.paged == len(s.ring) {
		s.extend = nil
	}
	return nil
}

// room returns how many bytes the ring has room for. It loads the peer's head only if the last
// known head leaves less than n.
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

// put copies as much of b into the ring as there is room for, and returns how much. The peer does
// not see it before publish.
func (s *sender) put(b []byte) (int, error) {
	room, err := s.room(len(b))
	if err != nil {
		return 0, err
	}
	b = b[:min(len(b), room)]
	if s.extend != nil {
		if err := s.reach(len(b)); err != nil {
			return 0, err
		}
	}
	at := int(s.sent & uint64(len(s.ring)-1))
	n := copy(s.ring[at:], b)
	copy(s.ring, b[n:])
	s.sent += uint64(len(b))
	return len(b), nil
}

// publish lets the peer see what was put. It reports whether the caller must wake the peer.
func (s *sender) publish() bool {
	released()
	s.tail.Store(s.sent)
	return mustWake(s.asleep, &s.wakeUpFor)
}

// mustWake reports whether w says that the peer sleeps, and no wake-up was sent for this sleep yet.
func mustWake(w word, wakeUpFor *uint64) bool {
	v := w.Load()
	if v&1 == 0 || v == *wakeUpFor {
		return false
	}
	*wakeUpFor = v
	return true
}

// countWakeUps adds n to the total of a side's wake-ups, and fails if the total exceeds the
// number of its sleeps. w is the value of the side's word for sleeping; it is even while the side
// is awake.
func countWakeUps(total *uint64, n int, w uint64) error {
	if *total += uint64(n); *total > w/2 {
		return fmt.Errorf("%w: it has sent %d wake-ups for %d sleeps", errBroken, *total, w/2)
	}
	return nil
}

// maxIdleWakes is how often in a row a side may be woken without bytes. A correct peer causes at
// most two, or more if over maxWakeUps wake-ups are left over.
const maxIdleWakes = 16

// checkIdleWakes returns an error if n wake-ups in a row without bytes are too many.
func checkIdleWakes(n int) error {
	if n <= maxIdleWakes {
		return nil
	}
	return fmt.Errorf("%w: it has sent %d wake-ups in a row for nothing", errBroken, n)
}

// startWaiting publishes that the sender waits for room. It reports false if there is room.
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

// stopWaiting publishes that the sender no longer waits for room.
func (s *sender) stopWaiting() {
	s.waits++
	s.wants.Store(s.waits)
}

// wokenBy calls stopWaiting after n wake-ups, and checks their number.
func (s *sender) wokenBy(n int) error {
	s.stopWaiting()
	return countWakeUps(&s.wakeUps, n, s.waits)
}

// A receiver is the reading end of a ring. The peer can change the bytes at any time, so
// they are copied before they are parsed.
type receiver struct {
	ring   []byte // its length is a power of two
	head   word
	asleep word

	tail  word // the peer's
	wants word // the peer's

	received  uint64
	sent      uint64 // the last value of tail
	sleeps    uint64 // the value of asleep
	wakeUpFor uint64 // the value of wants at the last wake-up
	wakeUps   uint64 // how often the peer has woken this side because bytes have arrived
}

// ready returns how many bytes can be read.
func (r *receiver) ready() (int, error) {
	tail := r.tail.Load()
	if n := tail - r.received; n < r.sent-r.received || n > uint64(len(r.ring)) {
		return 0, fmt.Errorf("%w: it has sent %d bytes, after %d, of which %d were received", errBroken, tail, r.sent, r.received)
	}
	r.sent = tail
	return int(tail - r.received), nil
}

// read copies as many bytes out of the ring as there are and b has room for, and returns their
// number. wake reports whether the caller must wake a peer that waits for room.
func (r *receiver) read(b []byte) (n int, wake bool, err error) {
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
	// A peer that waits has filled the ring. This side wakes it when half of the ring is empty,
	// which happens because this side reads until the ring is empty.
	if int(r.sent-r.received) <= len(r.ring)/2 {
		wake = mustWake(r.wants, &r.wakeUpFor)
	}
	return len(b), wake, nil
}

// startSleeping publishes that the receiver sleeps. It reports false if there are bytes to read.
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

// stopSleeping publishes that the receiver no longer sleeps.
func (r *receiver) stopSleeping() {
	r.sleeps++
	r.asleep.Store(r.sleeps)
}

// wokenBy calls stopSleeping after n wake-ups, and checks their number.
func (r *receiver) wokenBy(n int) error {
	r.stopSleeping()
	return countWakeUps(&r.wakeUps, n, r.sleeps)
}
