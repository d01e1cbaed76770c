package mux

import (
	"context"
	"math"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/mux/waits"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/testing/transporttest"
	"github.com/nearcall/nearcall/internal/wire"
)

// The tests of this file are attacks: a peer makes the session do work that costs the
// peer almost nothing. They count steps and bytes, not time.

// askFor returns the heads of n calls with ids from 1 on, each followed by what then
// appends.
func askFor(n int, then func(b []byte, id uint64) []byte) (b []byte) {
	var enc wire.Encoder
	profile := &link.Profile{}
	for i := range uint64(n) {
		id := 2*i + 1
		step := &wire.Step{Stream: id, Open: &link.CallHeader{Method: "/a/b", Profile: profile}}
		b, _ = enc.Append(b, step, 0)
		if then != nil {
			b = then(b, id)
		}
	}
	return b
}

// length returns the number of streams in q.
func (q *writeQueue) length() (n int) {
	for st := q.first; st != nil; st = st.next {
		n++
	}
	return n
}

// A CREDIT of the connection schedules only as many starved streams as can use it,
// however many there are.
func TestCreditInSmallPiecesIsNoWorkForThoseItDoesNotReach(t *testing.T) {
	const calls, size = 1000, 100
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		s, peer := met(t, Options{}, w)
		peer.write(askFor(calls, nil))
		for _, st := range w.streams {
			for range 10 {
				if err := st.Send(&link.Frame{Msg: ofBytes(size - wire.MessageCost), HasMsg: true}); err != nil {
					t.Fatal(err)
				}
			}
		}
		synctest.Wait()
		s.mu.Lock()
		waiting := s.writing.starved.length()
		if waiting < calls/4 || s.hasQueuedLocked() {
			t.Errorf("%d calls wait for credit, of which there is %d", waiting, s.writing.connOut)
		}
		for range wire.MessageCost - s.writing.connOut {
			f, _, _ := wire.Next(wire.AppendCredit(nil, 0, 1))
			if err := s.handleControlLocked(f, nil); err != nil || s.hasQueuedLocked() {
				t.Errorf("%d bytes of credit are work, %v", s.writing.connOut, err)
			}
		}
		s.writing.connOut += 10 * size
		s.feedStarvedLocked()
		moved := s.writing.ready.length() + s.writing.bulk.length()
		if moved < 1 || moved > 10+1 || moved+s.writing.starved.length() != waiting { // one may be in the middle of a message
			t.Errorf("of %d calls %d are given a turn with credit for 10 messages", calls, moved)
		}
		s.mu.Unlock()
		// All of them are served in the end.
		peer.write(wire.AppendCredit(nil, 0, 1<<30))
		s.mu.Lock()
		for st := range s.live {
			if len(st.out) > 0 {
				t.Errorf("a call with credit for %d bytes has %d left to write", st.flow.Credit, st.flow.Backlog)
			}
		}
		s.mu.Unlock()
	})
}

// Credit for a call wakes its sender only when the sender can proceed, however small the
// pieces in which the credit arrives.
func TestCreditInSmallPiecesWakesNobody(t *testing.T) {
	const calls, size = 100, 1000
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		s, peer := met(t, Options{}, w)
		peer.write(askFor(calls, nil), wire.AppendCredit(nil, 0, 1<<30))
		var senders sync.WaitGroup
		for _, st := range w.streams {
			senders.Go(func() {
				for range wire.MinWindow/(size+wire.MessageCost) + 2 { // the last but one takes more than there is
					if err := st.Send(&link.Frame{Msg: ofBytes(size), HasMsg: true}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		synctest.Wait()
		short := wire.MessageCost + size - wire.MinWindow%(size+wire.MessageCost)
		for i := range short + 1 {
			var after callbacks
			s.mu.Lock()
			for st := range s.live {
				f, _, _ := wire.Next(wire.AppendCredit(nil, st.id, 1))
				if err := s.handleControlLocked(f, &after); err != nil {
					t.Fatal(err)
				}
			}
			s.flushLocked(false)
			s.mu.Unlock()
			if woken := len(after.parkers) > 0; woken != (i == short) {
				t.Fatalf("%d bytes of %d wake senders: %v", i+1, short, woken)
			}
			after.run()
		}
		senders.Wait()
	})
}

// The bytes queued for writing are bounded per connection, however many streams the
// peer does not read. When the peer reads again, every stream continues.
func TestStreamsThatNobodyReadsShareWhatMayWait(t *testing.T) {
	const calls, size, messages = 500, 1000, 100
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		s, peer := lone(t, Options{}, w, false)
		peer.write(wire.AppendHello([]byte(wire.Magic), &wire.Hello{Version: 1, Stream: 1 << 20, Connection: wire.MinWindow, Block: wire.MinBlock}))
		peer.write(askFor(calls, nil))
		var senders sync.WaitGroup
		for i, st := range w.streams {
			senders.Go(func() {
				for range messages {
					if err := st.Send(&link.Frame{Msg: ofBytes(size), HasMsg: true}); err != nil {
						if i != 0 {
							t.Error(err)
						}
						return
					}
				}
			})
		}
		synctest.Wait()
		backlog := func() (all int) {
			s.mu.Lock()
			defer s.mu.Unlock()
			for st := range s.live {
				all += st.flow.Backlog
			}
			if all != s.writing.backlog {
				t.Errorf("%d bytes wait, and %d count", all, s.writing.backlog)
			}
			return all
		}
		const most = waits.MaxQueued + calls*(waits.MinBacklog+size+wire.MessageCost)
		if n := backlog(); n < waits.MaxQueued || n > most {
			t.Errorf("%d bytes of %d streams wait, no more than %d may", n, calls, most)
		}
		w.streams[0].Abort(context.Canceled)
		backlog()
		for range calls * messages * (size + wire.MessageCost) >> 20 {
			peer.write(wire.AppendCredit(nil, 0, 1<<20))
			if n := backlog(); n > most {
				t.Errorf("%d bytes wait", n)
			}
		}
		peer.write(wire.AppendCredit(nil, 0, 1<<20))
		senders.Wait()
		if n := backlog(); n != 0 {
			t.Errorf("%d bytes are left", n)
		}
	})
}

// The unread bytes are bounded per connection, however many streams have them. The
// bound must not block the connection for good: neither by a message that is larger
// than the bound, nor once the unread messages are received or their streams end.
func TestStreamsThatNobodyReadsShareWhatMayBeUnread(t *testing.T) {
	const calls, small, size, most = 290, 10, wire.MinWindow - 11*wire.MessageCost - 10, windowsUnread * wire.MinWindow
	synctest.Test(t, func(t *testing.T) {
		accepted := make(transporttest.Accepter, 1)
		cs, ss := pair(t, Options{}, Options{Config: configured(false, func(c *options.Connections) { c.MaxStreamWindow = wire.MinWindow })}, accepted)
		var streams [][2]*stream
		unread := func() (all int) {
			synctest.Wait()
			ss.mu.Lock()
			defer ss.mu.Unlock()
			for st := range ss.live {
				all += st.in.unread
			}
			if all != ss.unread {
				t.Errorf("%d bytes are unread, and %d count", all, ss.unread)
			}
			return all
		}
		for range calls {
			caller, callee := call(t, cs, accepted, "")
			streams = append(streams, [2]*stream{caller, callee})
			send(t, caller, make([]byte, size))
			for range small { // these are packed
				send(t, caller, make([]byte, 1))
			}
		}
		// The credit for what crosses the limit, at most a call's window, can have been given back.
		if n := unread(); n < most || n > most+wire.MinWindow+ss.opts.Config.ConnWindow {
			t.Errorf("%d bytes are unread, of %d that were sent; %d may", n, calls*wire.MinWindow, most)
		}
		reads := func(st *stream) {
			wants(t, st, make([]byte, size))
			for range small {
				wants(t, st, make([]byte, 1))
			}
		}
		// Some streams are read, others aborted.
		for i, st := range streams[:calls/2] {
			if i%2 == 0 {
				reads(st[1])
			} else {
				st[0].Abort(context.Canceled)
			}
		}
		if n, left := unread(), calls/2*wire.MinWindow; n != left || cs.writing.starved.first != nil {
			t.Errorf("%d bytes are unread, and %d left", n, left)
		}
		// A message that a receiver waits for does not count.
		large := noise(most + most/2)
		caller, callee := call(t, cs, accepted, "")
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			send(t, caller, large)
		}()
		wants(t, callee, large)
		<-sent
		for _, st := range streams[calls/2:] {
			reads(st[1])
		}
		if n := unread(); n != 0 {
			t.Errorf("%d bytes are unread when all was read", n)
		}
		even(t, cs, ss, [2]*stream{caller, callee})
	})
}

// Memory for a message is allocated as its bytes arrive, even if a receiver waits for
// it: announcing a size costs nothing.
func TestASizeThatIsOnlySaidTakesNoMemory(t *testing.T) {
	const calls, size, most = 100, 4 << 20, 16 << 10
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		_, peer := met(t, Options{Config: configured(false, func(c *options.Connections) { c.MaxStreamWindow = size })}, w)
		peer.write(askFor(calls, nil))
		for _, st := range w.streams {
			go func() { _, _ = receive(st, math.MaxInt) }()
		}
		var claims []byte
		for id := uint64(1); id < 2*calls; id += 2 {
			step := &wire.Step{Stream: id, HasMessage: true, Message: fill(size)}
			claims, _ = new(wire.Encoder).Append(claims, step, 1+wire.MessageCost)
		}
		got := allocated(func() { peer.write(claims) })
		if n := len(peer.of(wire.KindCredit)); n < calls {
			t.Errorf("%d of %d receivers ask for the rest", n, calls)
		}
		if got > calls*most {
			t.Errorf("%d sizes of %d bytes allocate %d bytes", calls, size, got)
		}
	})
}
