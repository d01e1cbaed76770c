package mux

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/mux/waits"
	"github.com/nearcall/nearcall/internal/wire"
)

// limited is start with a limit of open calls in HELLO.
func limited(calls uint64) []byte {
	return wire.AppendHello([]byte(wire.Magic), &wire.Hello{Version: 1, Stream: wire.MinWindow, Connection: wire.MinWindow, Calls: calls, Block: wire.MinBlock})
}

// crowded returns a client whose peer allows two open calls, and two open calls.
func crowded(t *testing.T) (s *Session, peer *raw, open []<-chan made) {
	s, peer = lone(t, Options{Client: true}, nil, false)
	peer.write(limited(2))
	for range 2 {
		open = append(open, makes(t.Context(), s, "/a/b", 1, 1))
		synctest.Wait()
	}
	return s, peer, open
}

// heads returns the ids of the calls that the peer has received.
func heads(peer *raw) (ids []uint64) {
	peer.Helper()
	for _, f := range peer.of(wire.KindStream) {
		if f.Kind&wire.FlagHead != 0 {
			ids = append(ids, f.Stream)
		}
	}
	return ids
}

// TestWhoGivesUpItsTurn takes the same time however many wait: the session is locked meanwhile, and
// many give up at a common deadline.
func TestWhoGivesUpItsTurn(t *testing.T) {
	const few, times, leaving = 3_000, 8, 1_000
	giveUp := func(n int) time.Duration {
		a, b := net.Pipe()
		defer a.Close()
		defer b.Close()
		s := newSession(a, Options{Client: true})
		s.hello.Calls, s.ownCalls, s.roles.Reader = 1, 1, waits.ReadLoop
		left := make(chan struct{}, n)
		var cancels []context.CancelFunc
		for range n {
			ctx, cancel := context.WithCancel(t.Context())
			cancels = append(cancels, cancel)
			go func() {
				if _, err := s.NewStream(ctx, &link.CallHeader{Profile: &link.Profile{}}); err == nil {
					t.Error("a call is admitted that the peer does not take")
				}
				left <- struct{}{}
			}()
		}
		for queued := 0; queued < n; time.Sleep(time.Millisecond) {
			s.mu.Lock()
			queued = len(s.live)
			s.mu.Unlock()
		}
		one := func(cancel context.CancelFunc) { // at a time, so that none waits for the lock
			cancel()
			<-left
		}
		middle := n / 2 // far from both ends of the queue
		begun := time.Now()
		for _, cancel := range cancels[middle : middle+leaving] {
			one(cancel)
		}
		took := time.Since(begun)
		for _, cancel := range slices.Delete(cancels, middle, middle+leaving) {
			one(cancel)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.live) > 0 || s.roles.Waiting != 0 || s.ownCalls != 1 {
			t.Errorf("%d are left, %d wait, %d are open", len(s.live), s.roles.Waiting, s.ownCalls)
		}
		return max(took, 2*time.Millisecond) // some systems' clocks show less as nothing
	}
	short, long := giveUp(few), giveUp(few*times)
	for range 9 { // each at its least, as other processes use the processors too
		if long < 3*short {
			return
		}
		short, long = min(short, giveUp(few)), min(long, giveUp(few*times))
	}
	t.Errorf("among %d, %d take %v, among %d they take %v", few, leaving, short, few*times, long)
}

func TestMoreCallsThanThePeerTakesWaitForTheirTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, peer, open := crowded(t)
		var mu sync.Mutex
		var order []int
		var all sync.WaitGroup
		for i := range 10 {
			all.Go(func() {
				st, err := s.NewStream(t.Context(), &link.CallHeader{Method: "/a/b", Profile: &link.Profile{}})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				if err := st.Recv(&link.Frame{}); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		for id := uint64(1); id <= 2*12; id += 2 {
			if n := len(heads(peer)); n != min(int(id/2)+2, 12) {
				t.Errorf("%d calls were made when %d were over", n, id/2)
			}
			peer.write(whole(id, 1))
		}
		all.Wait()
		for _, out := range open {
			if got := <-out; got.err != nil {
				t.Error(got.err)
			}
		}
		if !slices.IsSorted(order) || len(order) != 10 {
			t.Errorf("they came in the order %v", order)
		}
		empty(t, s)
		if s.ownCalls != 0 || s.roles.Waiting != 0 {
			t.Errorf("%d calls are admitted, %d wait", s.ownCalls, s.roles.Waiting)
		}
	})
}

// TestEachEndOfACallGivesItsPlaceUp checks that a call's slot is released exactly once,
// however the call ends.
func TestEachEndOfACallGivesItsPlaceUp(t *testing.T) {
	for name, end := range map[string]func(peer *raw, st link.Stream){
		"end":           func(peer *raw, _ link.Stream) { peer.write(whole(5, 1)) },
		"reset":         func(peer *raw, _ link.Stream) { peer.write(wire.AppendReset(nil, 5, 0, "")) },
		"abort":         func(_ *raw, st link.Stream) { st.Abort(context.Canceled) },
		"all of them":   func(peer *raw, st link.Stream) { peer.write(whole(5, 1)); st.Abort(context.Canceled) },
		"in that order": func(peer *raw, st link.Stream) { st.Abort(context.Canceled); peer.write(whole(5, 1)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, peer, open := crowded(t)
				peer.write(whole(1, 1))
				if got := <-open[0]; got.err != nil {
					t.Fatal(got.err)
				}
				st, err := s.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}})
				if err != nil {
					t.Fatal(err)
				}
				next, last := makes(t.Context(), s, "/a/b", 1, 1), makes(t.Context(), s, "/a/b", 1, 1)
				synctest.Wait()
				end(peer, st)
				synctest.Wait()
				if ids := heads(peer); len(ids) != 4 {
					t.Errorf("the calls %v were made", ids)
				}
				peer.write(whole(3, 1), whole(7, 1))
				peer.write(whole(9, 1))
				for _, out := range []<-chan made{open[1], next, last} {
					if got := <-out; got.err != nil {
						t.Error(got.err)
					}
				}
				if s.ownCalls != 0 {
					t.Errorf("%d calls are admitted", s.ownCalls)
				}
			})
		})
	}
}

func TestACallThatLeavesTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, peer, open := crowded(t)
		var queue []<-chan made
		var cancels []context.CancelFunc
		for range 5 {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			queue, cancels = append(queue, makes(ctx, s, "/a/b", 1, 1)), append(cancels, cancel)
			synctest.Wait()
		}
		for _, i := range []int{0, 2, 4} { // first, in the middle, last
			cancels[i]()
			if got := <-queue[i]; got.err != context.Canceled {
				t.Errorf("%v", got.err)
			}
		}
		peer.write(whole(1, 1), whole(3, 1))
		peer.write(whole(5, 1), whole(7, 1))
		for _, out := range append(open, queue[1], queue[3]) {
			if got := <-out; got.err != nil {
				t.Error(got.err)
			}
		}
		empty(t, s)
		if ids := heads(peer); len(ids) != 4 || s.ownCalls != 0 || s.roles.Waiting != 0 {
			t.Errorf("calls %v were made, %d calls are admitted, %d wait", ids, s.ownCalls, s.roles.Waiting)
		}
	})
}

// TestACallThatLeavesAsItGetsAPlace cancels a queued call while it is given a slot.
// Whichever comes first, the next call in the queue gets the slot.
func TestACallThatLeavesAsItGetsAPlace(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			s, peer, open := crowded(t)
			ctx, cancel := context.WithCancel(t.Context())
			first := makes(ctx, s, "/a/b", 1, 1)
			synctest.Wait()
			second := makes(t.Context(), s, "/a/b", 1, 1)
			synctest.Wait()
			go cancel()
			peer.write(whole(1, 1))
			if got := <-first; got.err != context.Canceled {
				t.Error(got.err)
			}
			synctest.Wait()
			ids := heads(peer)
			peer.write(whole(3, 1), whole(ids[len(ids)-1], 1))
			for _, out := range append(open, second) {
				if got := <-out; got.err != nil {
					t.Error(got.err)
				}
			}
			empty(t, s)
			if s.ownCalls != 0 || s.roles.Waiting != 0 {
				t.Errorf("%d calls are admitted, %d wait", s.ownCalls, s.roles.Waiting)
			}
		})
	}
}

func TestWhoeverWaitsForAPlaceIsRefusedWhenThereIsNone(t *testing.T) {
	for name, end := range map[string]func(s *Session, peer *raw){
		"drain":             func(s *Session, _ *raw) { s.Retire() },
		"drain of the peer": func(_ *Session, peer *raw) { peer.write(wire.AppendDrain(nil, 3)) },
		"close":             func(s *Session, _ *raw) { _ = s.Close(errors.New("enough")) },
		"bye":               func(_ *Session, peer *raw) { peer.write(wire.AppendBye(nil, 0, "")) },
		"hang-up":           func(_ *Session, peer *raw) { _ = peer.conn.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, peer, open := crowded(t)
				var queue []<-chan made
				for range 5 {
					queue = append(queue, makes(t.Context(), s, "/a/b", 1, 1))
				}
				synctest.Wait()
				end(s, peer)
				for _, out := range queue {
					if got := <-out; !errors.Is(got.err, link.ErrUnprocessed) {
						t.Errorf("%v", got.err)
					}
				}
				if name == "drain" || name == "drain of the peer" { // the open calls continue
					peer.write(whole(1, 1), whole(3, 1))
				}
				for _, out := range open {
					if got := <-out; (got.err == nil) != (name == "drain" || name == "drain of the peer") {
						t.Error(got.err)
					}
				}
				synctest.Wait()
				empty(t, s)
				if ids := heads(peer); len(ids) != 2 || s.ownCalls != 0 || s.roles.Waiting != 0 {
					t.Errorf("calls %v were made, %d calls are admitted, %d wait", ids, s.ownCalls, s.roles.Waiting)
				}
			})
		})
	}
}

// TestCallsFromBeforeTheLimitWasKnown opens more calls before HELLO than HELLO allows.
// No new call starts until enough of them have ended.
func TestCallsFromBeforeTheLimitWasKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, peer := lone(t, Options{Client: true}, nil, false)
		for range 3 {
			if _, err := s.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}}); err != nil {
				t.Fatal(err)
			}
		}
		peer.write(limited(1))
		out := makes(t.Context(), s, "/a/b", 1, 1)
		for i, want := range []int{3, 3, 4} {
			synctest.Wait()
			peer.write(wire.AppendReset(nil, uint64(1+2*i), wire.ResetUnprocessed, ""))
			if n := len(heads(peer)); n != want {
				t.Errorf("%d calls were made when %d were over, want %d", n, 1+i, want)
			}
		}
		peer.write(whole(7, 1))
		if got := <-out; got.err != nil {
			t.Error(got.err)
		}
		if s.ownCalls != 0 {
			t.Errorf("%d calls are admitted", s.ownCalls)
		}
	})
}

// TestAPeerThatTakesNoCallsGetsNone checks that calls fail at once if the peer's HELLO
// has FeatureNoCalls.
func TestAPeerThatTakesNoCallsGetsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hello := wire.Hello{Version: 1, Features: wire.FeatureNoCalls, Stream: wire.MinWindow, Connection: wire.MinWindow, Block: wire.MinBlock}
		s, peer := metWith(t, Options{}, nil, wire.AppendHello([]byte(wire.Magic), &hello))
		if _, err := s.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}}); !errors.Is(err, link.ErrOneWay) {
			t.Errorf("Open returns %v", err)
		} else {
			says(t, err, "takes no calls")
		}
		if n := len(peer.frames()); n != 1 { // HELLO
			t.Errorf("it sends %d frames", n)
		}
		_ = s.Close(errors.New("done"))
		<-s.Gone()
	})
}

// TestASideSaysWhetherItTakesCalls checks FeatureNoCalls in the HELLO of sides with and
// without an acceptor.
func TestASideSaysWhetherItTakesCalls(t *testing.T) {
	for name, c := range map[string]struct {
		start func(s *Session)
		want  uint64
	}{
		"none":  {func(s *Session) { s.Start(nil) }, wire.FeatureNoCalls},
		"calls": {func(s *Session) { s.Start(&witness{}) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				s := newSession(ours, Options{Client: true})
				c.start(s)
				b := make([]byte, 100)
				n, err := io.ReadAtLeast(theirs, b, len(wire.Magic)+4)
				if err != nil {
					t.Fatal(err)
				}
				f, _, err := wire.Next(b[len(wire.Magic):n])
				if err != nil {
					t.Fatal(err)
				}
				if h, err := wire.ParseHello(f.Body); err != nil || h.Features != c.want {
					t.Errorf("HELLO says %+v, %v", h, err)
				}
				_ = theirs.Close()
				<-s.Gone()
			})
		})
	}
}
