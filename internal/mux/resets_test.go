package mux

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

// givenUp returns n calls with ids from first on, each followed by its RESET.
func givenUp(first uint64, n int) (b []byte) {
	for id := first; id < first+2*uint64(n); id += 2 {
		b = append(b, frameOf(head, id, opens...)...)
		b = wire.AppendReset(b, id, wire.ResetCancelled, "")
	}
	return b
}

// resetting returns a session whose peer resets too much, and the id of the peer's last call.
func resetting(t *testing.T, w *witness) (s *Session, peer *raw, last uint64) {
	s, peer = met(t, Options{}, w)
	peer.write(givenUp(1, maxResets))
	if !s.resetsTooMuch() {
		t.Errorf("a peer that has given up %d calls does not count as resetting too much: %d", maxResets, s.resets)
	}
	return s, peer, 2*maxResets - 1
}

func TestCallsResetInOneReadReachFewHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls = 10_000
		w := &witness{}
		s, peer := met(t, Options{}, w)
		peer.write(givenUp(1, calls))
		reads := int(s.silent.reads)
		if n := len(w.streams); n < maxResets/2 || n > maxResets/2+reads || n != len(w.aborts) {
			t.Errorf("%d of %d calls are seen by handlers, in %d reads; %d are aborted", n, calls, reads, len(w.aborts))
		}
		if n := len(peer.of(wire.KindReset)); n > 0 {
			t.Errorf("%d of them are answered", n)
		}
		empty(t, s)
	})
}

// The other calls of a peer that resets too much are served as usual, in order and with their messages.
func TestResettingPeerOtherCallsAreServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		s, peer, last := resetting(t, w)
		before := len(w.streams)
		var ids []uint64
		for i := range uint64(maxResets) {
			id := last + 2 + 8*i
			ids = append(ids, id+2, id+6)
			given, other := givenUp(id, 1), givenUp(id+4, 1)
			peer.write(given, frameOf(head|wire.FlagMessage, id+2, append(slices.Clone(opens), fmt.Sprint(id+2)...)...), other,
				frameOf(head, id+6, opens...), frameOf(message|wire.FlagEnd, id+6, []byte(fmt.Sprint(id+6))...))
		}
		if n := len(w.streams) - before; n != len(ids) {
			t.Fatalf("%d calls are served, want %d", n, len(ids))
		}
		for i, st := range w.streams[before:] {
			wants(t, st, []byte(fmt.Sprint(ids[i])))
			if err := st.Send(&link.Frame{End: &link.End{Status: status.New(codes.OK, "")}}); err != nil {
				t.Error(err)
			}
		}
		synctest.Wait()
		empty(t, s)
		if s.resetsTooMuch() || len(s.reading.late) > 0 {
			t.Errorf("a peer whose calls have ended counts as resetting too much: %d", s.resets)
		}
	})
}

// A delayed call does not reach the acceptor if the session ends first.
func TestResettingPeerBreaksARule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		s, peer, last := resetting(t, w)
		before := len(w.streams)
		peer.write(frameOf(head, last+2, opens...), frameOf(head, last+2, opens...))
		if len(w.closed) != 1 || len(w.streams) != before {
			t.Errorf("the session ended for %v, and %d calls more were accepted", w.closed, len(w.streams)-before)
		}
		empty(t, s)
	})
}

// TestResettingPeerIsRefused checks that a refused call of such a peer is reset.
func TestResettingPeerIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		s, peer, last := resetting(t, w)
		w.refuse = link.Unprocessed{Err: fmt.Errorf("no")}
		peer.write(frameOf(head, last+2, opens...), frameOf(head, last+4, opens...))
		if r := peer.of(wire.KindReset); len(r) != 2 || r[0].Stream != last+2 || r[1].Stream != last+4 {
			t.Errorf("the peer gets %v", r)
		}
		empty(t, s)
	})
}
