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

func TestCallsResetInOneReadReachNoHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls = 10_000
		w := &witness{}
		s, peer := met(t, Options{}, w)
		peer.write(givenUp(1, calls))
		reads := int(s.silent.reads)
		if n := len(w.streams); n > reads || n != len(w.aborts) { // a read may end between a call and its RESET
			t.Errorf("%d of %d calls are seen by handlers, in %d reads; %d are aborted", n, calls, reads, len(w.aborts))
		}
		if n := len(peer.of(wire.KindReset)); n > 0 {
			t.Errorf("%d of them are answered", n)
		}
		empty(t, s)
	})
}

// The other calls of a peer that resets many are served as usual, in order and with their messages.
func TestResettingPeerOtherCallsAreServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		s, peer := met(t, Options{}, w)
		var ids []uint64
		for i := range uint64(256) {
			id := 1 + 8*i
			ids = append(ids, id+2, id+6)
			given, other := givenUp(id, 1), givenUp(id+4, 1)
			peer.write(given, frameOf(head|wire.FlagMessage, id+2, append(slices.Clone(opens), fmt.Sprint(id+2)...)...), other,
				frameOf(head, id+6, opens...), frameOf(msg|wire.FlagEnd, id+6, []byte(fmt.Sprint(id+6))...))
		}
		if n := len(w.streams); n != len(ids) {
			t.Fatalf("%d calls are served, want %d", n, len(ids))
		}
		for i, st := range w.streams {
			wants(t, st, []byte(fmt.Sprint(ids[i])))
			if err := st.Send(&link.Frame{End: &link.End{Status: status.New(codes.OK, "")}}); err != nil {
				t.Error(err)
			}
		}
		synctest.Wait()
		empty(t, s)
	})
}

// A new call does not reach the acceptor if the session ends first.
func TestNewCallsOfAPeerThatBreaksARule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		s, peer := met(t, Options{}, w)
		peer.write(frameOf(head, 1, opens...), frameOf(head, 1, opens...))
		if len(w.closed) != 1 || len(w.streams) > 0 {
			t.Errorf("the session ended for %v, and %d calls were accepted", w.closed, len(w.streams))
		}
		empty(t, s)
	})
}

// TestNewCallsAreRefused checks that a refused call is reset.
func TestNewCallsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		s, peer := met(t, Options{}, w)
		w.refuse = link.Unprocessed{Err: fmt.Errorf("no")}
		peer.write(frameOf(head, 1, opens...), frameOf(head, 3, opens...))
		if r := peer.of(wire.KindReset); len(r) != 2 || r[0].Stream != 1 || r[1].Stream != 3 {
			t.Errorf("the peer gets %v", r)
		}
		empty(t, s)
	})
}
