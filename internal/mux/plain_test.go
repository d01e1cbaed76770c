package mux

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/mux/waits"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/testing/transporttest"
	"github.com/nearcall/nearcall/internal/wire"
)

// messagesIn returns the messages in frames of one call from a server, whole or in pieces.
func messagesIn(t *testing.T, frames []byte) (all [][]byte) {
	t.Helper()
	var d wire.Decoder
	for len(frames) > 0 {
		f, n, err := wire.Next(frames)
		if err != nil || n == 0 {
			t.Fatalf("the output ends with %d bytes of a frame: %v", len(frames), err)
		}
		frames = frames[n:]
		if !f.Kind.Stream() {
			continue
		}
		rc, err := d.Stream(f, nil, false)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case rc.Begins:
			all = append(all, bytes.Clone(rc.Data))
		case rc.Goes:
			all[len(all)-1] = append(all[len(all)-1], rc.Data...)
		}
	}
	return all
}

// A peer that returns the connection's credit in small amounts gets as much of a run as it has
// credit for.
func TestRunsAreWrittenAsFarAsThereIsCredit(t *testing.T) {
	for seed := range uint64(10) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 2))
			w := &witness{}
			hello := wire.AppendHello([]byte(wire.Magic), &wire.Hello{Version: wire.Version, Stream: 1 << 20, Connection: wire.MinWindow, Block: wire.MinBlock})
			s, peer := metWith(t, Options{}, w, hello)
			peer.write(opened(1))
			st := w.first(t)
			synctest.Wait()
			peer.mu.Lock()
			before := len(peer.got)
			peer.mu.Unlock()
			var want [][]byte
			total := 0
			for total < wire.MinWindow+20_000 {
				m := numbered(len(want), r.IntN(1+[]int{1, 40, 600, 5000}[r.IntN(4)]))
				want = append(want, m)
				total += len(m) + wire.MessageCost
				send(t, st, m)
			}
			for credit := wire.MinWindow; credit < total; {
				synctest.Wait()
				n := 1 + r.IntN(700)
				peer.write(wire.AppendCredit(nil, 0, int64(n)))
				credit += n
			}
			synctest.Wait()
			peer.mu.Lock()
			got := messagesIn(t, peer.got[before:])
			peer.mu.Unlock()
			if len(got) != len(want) {
				t.Fatalf("%d messages were written, want %d", len(got), len(want))
			}
			for i := range want {
				if !bytes.Equal(got[i], want[i]) {
					t.Fatalf("message %d has %d bytes, want %d", i, len(got[i]), len(want[i]))
				}
			}
			s.mu.Lock()
			if left := st.(*stream); left.flow.Backlog != 0 || left.flow.Queued != 0 || len(left.out) != 0 || s.writing.backlog != 0 {
				t.Errorf("a backlog of %d and %d, %d queued, in %d", left.flow.Backlog, s.writing.backlog, left.flow.Queued, len(left.out))
			}
			s.mu.Unlock()
			if err := st.Send(&link.Frame{End: &link.End{}}); err != nil {
				t.Error(err)
			}
			synctest.Wait()
			empty(t, s)
		})
	}
}

// Messages in runs count as others do towards what may wait to be written.
func TestASenderWaitsForRoomBehindARun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		accepted := make(transporttest.Accepter, 1)
		cs, ss := pair(t, Options{Config: configured(false, func(c *options.Connections) { c.StreamWindow = 1 << 20 })}, Options{Config: configured(false, func(c *options.Connections) { c.StreamWindow = 1 << 20 })}, accepted)
		caller, callee := call(t, cs, accepted, "")
		send(t, caller, []byte("first"))
		wants(t, callee, []byte("first"))
		synctest.Wait()
		cs.mu.Lock()
		cs.roles.WriteLock = waits.Taken // nobody writes
		cs.mu.Unlock()
		sent := 0
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range 2 * waits.MaxWaiting {
				send(t, caller, []byte{1})
				cs.mu.Lock()
				sent++
				cs.mu.Unlock()
			}
		}()
		synctest.Wait()
		cs.mu.Lock()
		if sent != waits.MaxWaiting || caller.flow.Queued != waits.MaxWaiting || len(caller.out) != 1 {
			t.Errorf("%d messages were sent, %d wait, in %d", sent, caller.flow.Queued, len(caller.out))
		}
		cs.roles.WriteLock = waits.Free
		cs.flushLocked(false)
		cs.mu.Unlock()
		for range 2 * waits.MaxWaiting {
			wants(t, callee, []byte{1})
		}
		<-done
		even(t, cs, ss, [2]*stream{caller, callee})
	})
}

// A call that is aborted leaves nothing of its run.
func TestAnAbortDropsARun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		accepted := make(transporttest.Accepter, 1)
		cs, ss := pair(t, Options{}, Options{}, accepted)
		caller, callee := call(t, cs, accepted, "")
		send(t, caller, []byte("first"))
		wants(t, callee, []byte("first"))
		synctest.Wait()
		cs.mu.Lock()
		cs.roles.WriteLock = waits.Taken // nobody writes
		cs.mu.Unlock()
		for range 100 {
			send(t, caller, make([]byte, 100))
		}
		caller.Abort(context.Canceled)
		cs.mu.Lock()
		if caller.flow.Queued != 0 || caller.flow.Backlog != 0 || cs.writing.backlog != 0 {
			t.Errorf("%d messages wait, of %d and %d bytes", caller.flow.Queued, caller.flow.Backlog, cs.writing.backlog)
		}
		cs.roles.WriteLock = waits.Free
		cs.flushLocked(false)
		cs.mu.Unlock()
		synctest.Wait()
		even(t, cs, ss)
		empty(t, cs)
		empty(t, ss)
	})
}
