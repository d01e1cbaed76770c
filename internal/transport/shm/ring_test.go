package shm

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
)

// control has the words of one direction.
type control struct{ tail, head, asleep, wants atomic.Uint64 }

// ends returns both ends of a ring in which start bytes were already sent and received.
func ends(size int, start uint64) (*control, *sender, *receiver) {
	c, ring := new(control), make([]byte, size)
	c.tail.Store(start)
	c.head.Store(start)
	s := &sender{ring: ring, tail: &c.tail, wants: &c.wants, head: &c.head, asleep: &c.asleep, sent: start, received: start}
	r := &receiver{ring: ring, head: &c.head, asleep: &c.asleep, tail: &c.tail, wants: &c.wants, sent: start, received: start}
	return c, s, r
}

// starts are initial values of cursors, some of them close to overflow.
var starts = []uint64{0, 1, 4095, 1<<32 - 3, 1<<63 - 5, 1<<64 - 7}

func TestBytesComeOutOfARingAsTheyWentIn(t *testing.T) {
	for _, start := range starts {
		for _, size := range []int{1, 2, 8, 64} {
			t.Run(fmt.Sprintf("%d bytes from %d on", size, start), func(t *testing.T) {
				_, s, r := ends(size, start)
				rnd := rand.New(rand.NewPCG(uint64(size), start))
				var next, want byte
				inside := 0
				buf := make([]byte, 2*size+2)
				for range 2000 {
					b := buf[:rnd.IntN(len(buf))]
					if rnd.IntN(2) == 0 {
						for i := range b {
							b[i] = next + byte(i)
						}
						n, err := s.put(b)
						if err != nil || n != min(len(b), size-inside) {
							t.Fatalf("%d of %d bytes went in, %v; %d of %d were taken", n, len(b), err, inside, size)
						}
						s.publish()
						next += byte(n)
						inside += n
						continue
					}
					n, _, err := r.read(b)
					if err != nil || n != min(len(b), inside) {
						t.Fatalf("%d of %d bytes came out, %v; there were %d", n, len(b), err, inside)
					}
					for _, got := range b[:n] {
						if got != want {
							t.Fatalf("%d came, and should be %d", got, want)
						}
						want++
					}
					inside -= n
				}
				if want == 0 || next == want && inside > 0 {
					t.Fatal("nothing was sent")
				}
			})
		}
	}
}

func TestWhatWasPutIsNotSeenBeforeItIsPublished(t *testing.T) {
	_, s, r := ends(8, 0)
	if n, err := s.put([]byte("abc")); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	b := make([]byte, 8)
	if n, _, err := r.read(b); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	s.publish()
	if n, _, err := r.read(b); n != 3 || err != nil || string(b[:3]) != "abc" {
		t.Fatal(n, err, b)
	}
}

func TestAnEmptyRingLetsAReceiverSleepAndAFullOneASender(t *testing.T) {
	for _, start := range starts {
		c, s, r := ends(8, start)
		if sleeps, err := r.startSleeping(); !sleeps || err != nil {
			t.Fatal("in an empty ring:", sleeps, err)
		}
		if n, err := s.put(make([]byte, 10)); n != 8 || err != nil {
			t.Fatal(n, err)
		}
		if !s.publish() {
			t.Error("a receiver that sleeps is not woken")
		}
		if s.publish() {
			t.Error("it is woken for the second time")
		}
		r.stopSleeping()
		if sleeps, err := r.startSleeping(); sleeps || err != nil || c.asleep.Load()&1 != 0 {
			t.Fatal("in a full ring:", sleeps, err, c.asleep.Load())
		}
		if waits, err := s.startWaiting(); !waits || err != nil {
			t.Fatal("the sender of a full ring:", waits, err)
		}
		wakeUps := 0
		for want := 7; want >= 0; want-- {
			n, wake, err := r.read(make([]byte, 1))
			if n != 1 || err != nil {
				t.Fatal(n, err)
			}
			if wake {
				wakeUps++
				if want != 4 {
					t.Errorf("the sender is woken with %d bytes to receive", want)
				}
			}
		}
		if wakeUps != 1 {
			t.Errorf("the sender was woken %d times", wakeUps)
		}
		s.stopWaiting()
		if waits, err := s.startWaiting(); waits || err != nil || c.wants.Load()&1 != 0 {
			t.Fatal("the sender of an empty ring:", waits, err, c.wants.Load())
		}
	}
}

// receiving are all ways in which a receiver loads its peer's tail.
var receiving = map[string]func(*receiver) error{
	"ready":         func(r *receiver) error { _, err := r.ready(); return err },
	"take":          func(r *receiver) error { _, _, err := r.read(make([]byte, 4)); return err },
	"startSleeping": func(r *receiver) error { _, err := r.startSleeping(); return err },
}

func TestATailThatCannotBeIsAnError(t *testing.T) {
	for _, start := range starts {
		// 6 bytes were sent, and 2 of them received, in a ring of 8.
		for _, tail := range []uint64{0, 1, 2, 5, 11, 12, 1 << 31, 1 << 32, 1 << 63, 1<<63 + 6, 1<<64 - 1} {
			for name, look := range receiving {
				c, s, r := ends(8, start)
				if _, err := s.put(make([]byte, 6)); err != nil {
					t.Fatal(err)
				}
				s.publish()
				if n, _, err := r.read(make([]byte, 2)); n != 2 || err != nil {
					t.Fatal(n, err)
				}
				c.tail.Store(start + tail)
				if err := look(r); !errors.Is(err, errBroken) {
					t.Errorf("from %d on, %s of a tail %d further: %v", start, name, tail, err)
				}
				if got := c.head.Load(); got != start+2 {
					t.Errorf("from %d on, %s of a tail %d further: %d bytes were received", start, name, tail, got-start)
				}
				if c.asleep.Load()&1 != 0 {
					t.Errorf("%s leaves the receiver asleep", name)
				}
			}
		}
		// The smallest and the largest valid tail.
		for _, tail := range []uint64{6, 10} {
			c, s, r := ends(8, start)
			_, _ = s.put(make([]byte, 6))
			s.publish()
			_, _, _ = r.read(make([]byte, 2))
			c.tail.Store(start + tail)
			if n, err := r.ready(); n != int(tail-2) || err != nil {
				t.Errorf("from %d on, a tail %d further: %d bytes, %v", start, tail, n, err)
			}
		}
	}
}

// sending are all ways in which a sender loads its peer's head.
var sending = map[string]func(*sender) error{
	"room":         func(s *sender) error { _, err := s.room(8); return err },
	"put":          func(s *sender) error { _, err := s.put(make([]byte, 8)); return err },
	"startWaiting": func(s *sender) error { s.sent += uint64(len(s.ring)) - 4; _, err := s.startWaiting(); return err },
}

func TestAHeadThatCannotBeIsAnError(t *testing.T) {
	for _, start := range starts {
		// 6 bytes were sent, and 2 of them received, in a ring of 8.
		for _, head := range []uint64{0, 1, 13, 1 << 31, 1 << 32, 1 << 63, 1<<63 + 2, 1<<64 - 1} {
			for name, look := range sending {
				c, s, _ := ends(8, start)
				if n, err := s.put(make([]byte, 6)); n != 6 || err != nil {
					t.Fatal(n, err)
				}
				c.head.Store(start + 2)
				if n, err := s.room(8); n != 4 || err != nil {
					t.Fatal(n, err)
				}
				c.head.Store(start + head)
				if err := look(s); !errors.Is(err, errBroken) {
					t.Errorf("from %d on, %s with a head %d further: %v", start, name, head, err)
				}
				if c.wants.Load()&1 != 0 {
					t.Errorf("%s leaves the sender waiting", name)
				}
			}
		}
		for _, head := range []uint64{2, 6} {
			c, s, _ := ends(8, start)
			_, _ = s.put(make([]byte, 6))
			c.head.Store(start + head)
			if n, err := s.room(8); n != int(2+head) || err != nil {
				t.Errorf("from %d on, a head %d further: room for %d bytes, %v", start, head, n, err)
			}
		}
	}
}

// FuzzControlPage lets a peer write anything to its words and to the ring, between any two
// operations of this side.
func FuzzControlPage(f *testing.F) {
	f.Add([]byte{0, 3, 1, 0, 8, 9, 2, 1, 3, 9, 5, 4, 2}, uint64(0))
	f.Add([]byte{4, 0xff, 0, 4, 1, 16, 5, 200, 0, 16, 6, 7, 2, 3}, uint64(1<<64-4))
	f.Fuzz(func(t *testing.T, script []byte, start uint64) {
		const size = 16
		// The bytes around the rings must not be touched.
		arena := bytes.Repeat([]byte{0xaa}, 6*size)
		mine, theirs := arena[size:2*size:2*size], arena[3*size:4*size:4*size]
		var own, peers struct{ tail, head, asleep, wants atomic.Uint64 }
		for _, w := range []*atomic.Uint64{&own.tail, &own.head, &peers.tail, &peers.head} {
			w.Store(start)
		}
		s := &sender{ring: mine, tail: &own.tail, wants: &own.wants, head: &peers.head, asleep: &peers.asleep, sent: start, received: start}
		r := &receiver{ring: theirs, head: &own.head, asleep: &own.asleep, tail: &peers.tail, wants: &peers.wants, sent: start, received: start}
		next := func() byte {
			if len(script) == 0 {
				return 0
			}
			b := script[0]
			script = script[1:]
			return b
		}
		for len(script) > 0 {
			var err error
			sent, received := s.sent, r.received
			switch op, arg := next()%8, int(next()); op {
			case 0:
				var n int
				if n, err = s.put(make([]byte, arg)); n < 0 || n > min(arg, size) || s.sent != sent+uint64(n) {
					t.Fatalf("put of %d bytes put %d", arg, n)
				}
				if s.publish() && peers.asleep.Load()&1 == 0 {
					t.Fatal("a peer that does not sleep is woken")
				}
			case 1:
				b := bytes.Repeat([]byte{0x55}, arg+8)
				var n int
				if n, _, err = r.read(b[:arg]); n < 0 || n > min(arg, size) || r.received != received+uint64(n) {
					t.Fatalf("take of %d bytes took %d", arg, n)
				}
				for _, got := range b[n:] {
					if got != 0x55 {
						t.Fatalf("take writes beyond the %d bytes that it took", n)
					}
				}
			case 2:
				var sleeps bool
				if sleeps, err = r.startSleeping(); sleeps != (own.asleep.Load()&1 == 1) {
					t.Fatal("the receiver's word does not say whether it sleeps")
				}
				if sleeps {
					r.stopSleeping()
				}
			case 3:
				var waits bool
				if waits, err = s.startWaiting(); waits != (own.wants.Load()&1 == 1) {
					t.Fatal("the sender's word does not say whether it waits")
				}
				if waits {
					s.stopWaiting()
				}
			default: // the peer: a value close to a valid one, or any value
				words := []*atomic.Uint64{&peers.tail, &peers.head, &peers.asleep, &peers.wants}
				near := []uint64{r.received, s.received, peers.asleep.Load(), peers.wants.Load()}
				i := arg % 4
				v := near[i] + uint64(arg/4)
				if op == 5 {
					v = near[i] - uint64(arg/4)
				} else if op == 6 {
					v = uint64(arg) << (next() % 64)
				}
				words[i].Store(v)
				for j := range theirs {
					theirs[j] = byte(v) + byte(j)
				}
			}
			if err != nil && !errors.Is(err, errBroken) {
				t.Fatal(err)
			}
			if used := s.sent - s.received; used > size {
				t.Fatalf("%d bytes are in a ring of %d", used, size)
			}
			if there := r.sent - r.received; there > size {
				t.Fatalf("%d bytes can be received from a ring of %d", there, size)
			}
			if own.head.Load() != r.received {
				t.Fatalf("%d bytes were received, and the peer is told of %d", r.received, own.head.Load())
			}
		}
		for i, b := range arena {
			if i/size != 1 && i/size != 3 && b != 0xaa {
				t.Fatal("somebody has written beside the rings")
			}
		}
	})
}

// A ring is made as it is filled, once, and nothing is put where it is not.
func TestARingIsMadeAsItIsFilled(t *testing.T) {
	const size = 2*extendBy + 1<<10
	_, s, r := ends(1<<20, 0)
	s.ring = s.ring[:1<<17]
	r.ring = s.ring
	var steps []int
	refused := errors.New("there is no more")
	var wrong error
	s.paged, s.extend = extendBy, func(more int) error {
		steps = append(steps, more)
		return wrong
	}
	buf := make([]byte, size)
	for i, want := range []int{0, 0, 2, 2, 3, 3, 3} { // as often was it extended
		n := []int{1, extendBy - 1, extendBy + 1, 1, extendBy, 10, size}[i]
		if got, err := s.put(buf[:n]); got != n || err != nil {
			t.Fatal(got, err)
		}
		if len(steps) != want || int(s.sent) <= len(s.ring) && s.paged < int(s.sent) {
			t.Errorf("%d: extended by %v, and %d bytes are there after %d", i, steps, s.paged, s.sent)
		}
		s.publish()
		if _, _, err := r.read(buf); err != nil {
			t.Fatal(err)
		}
	}
	_, s, _ = ends(1<<20, 0)
	s.paged, s.extend, wrong = extendBy, func(int) error { return wrong }, refused
	if n, err := s.put(buf); n != 0 || err != refused || s.sent != 0 {
		t.Errorf("%d, %v", n, err)
	}
	if n, err := s.put(buf[:extendBy]); n != extendBy || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}
