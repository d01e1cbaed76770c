package mux

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

// What a peer sends must not cost this side more than a constant for each byte,
// in memory that is kept or only allocated. These tests send what once did.

// A hoarder accepts calls and, unless it forgets them, keeps all that it is told of
// them, as handlers do that do not return.
type hoarder struct {
	witness
	forgets  bool
	accepted int
	opens    []*link.Open
}

func (h *hoarder) Accept(s link.Stream, o *link.Open) error {
	h.accepted++
	if h.forgets {
		return nil
	}
	h.opens = append(h.opens, o)
	return h.witness.Accept(s, o)
}

// An attack is what each of several peers sends.
type attack struct {
	peers   int
	forgets bool // the calls' handlers return
	send    [][]byte
}

// costs are what an attack costs this side, in bytes: those that were sent, those
// that were allocated meanwhile, and those that are kept while the peers stay.
type costs struct{ sent, allocated, kept int }

// run returns what the attack costs, and what became of it. It is called in a bubble.
func (a attack) run(t *testing.T) (c costs, all []*hoarder) {
	t.Helper()
	conns := make([]net.Conn, a.peers)
	for i := range conns {
		mine, peers := net.Pipe()
		h := &hoarder{forgets: a.forgets}
		s := New(mine, Options{})
		s.Start(h)
		go func() { _, _ = io.Copy(io.Discard, peers) }()
		t.Cleanup(func() {
			_ = peers.Close()
			<-s.Gone()
		})
		_, _ = peers.Write(start())
		conns[i], all = peers, append(all, h)
	}
	synctest.Wait()
	var before, after runtime.MemStats
	collect()
	runtime.ReadMemStats(&before)
	for _, conn := range conns {
		for _, b := range a.send {
			if _, err := conn.Write(b); err != nil {
				break // what became of it is for the test to say
			}
			c.sent += len(b)
		}
	}
	synctest.Wait()
	runtime.ReadMemStats(&after)
	c.allocated = int(after.TotalAlloc - before.TotalAlloc)
	collect()
	runtime.ReadMemStats(&after)
	c.kept = int(after.HeapAlloc) - int(before.HeapAlloc)
	runtime.KeepAlive(a)
	runtime.KeepAlive(all)
	t.Logf("%d bytes: %d allocated (%.1f for each), %d kept (%.1f)", c.sent, c.allocated, float64(c.allocated)/float64(c.sent), c.kept, float64(c.kept)/float64(c.sent))
	return c, all
}

// collect empties the pools as well.
func collect() {
	for range 3 {
		runtime.GC()
	}
}

// inParts returns the frames of a block of a call's head.
func inParts(id uint64, block []byte) (all [][]byte) {
	const most = 60_000
	for ; len(block) > most; block = block[most:] {
		all = append(all, literal(wire.KindPart, id, block[:most]...))
	}
	return append(all, literal(head, id, block...))
}

func number(b []byte, v int) []byte { return binary.AppendUvarint(b, uint64(v)) }

// entriesOf is a block of about size bytes that are entries of 2 bytes, with the
// name and the profile of the call before.
func entriesOf(size int) []byte {
	n := size/2 - 10
	return slices.Concat(number([]byte{2, 1, 0}, n), bytes.Repeat([]byte{3, 0}, n))
}

// firstCall has a method and a key whose names get the numbers 0 and 1, and a profile.
func firstCall() []byte {
	block := short([]byte{0}, "/a/b")
	block = append(block, 0, 0, 0, 0, 0, 0, 0, 1, 0)
	return literal(head, 1, append(short(block, "key"), 0)...)
}

func TestWhatHeadersOfManyEntriesCost(t *testing.T) {
	const calls = 6
	for name, c := range map[string]struct {
		size  int
		taken bool
	}{
		"as large as blocks may be on the wire": {16<<20 - 1000, false},
		"as large as headers may be":            {16 << 20 / (32 + 3) * 2, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				send := [][]byte{firstCall()}
				for i := range calls {
					send = append(send, inParts(uint64(3+2*i), entriesOf(c.size))...)
				}
				cost, all := attack{peers: 1, send: send}.run(t)
				want := 1
				if c.taken {
					want += calls
				}
				if got := all[0].accepted; got != want || len(all[0].closed) > 0 {
					t.Errorf("%d calls are accepted, not %d; %v", got, want, all[0].closed)
				}
				if cost.allocated > 15*cost.sent || cost.kept > 10*cost.sent {
					t.Errorf("%+v", cost)
				}
			})
		})
	}
}

func TestWhatProfilesCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const peers, profiles, length, each = 10, 256, 65_000, 200 << 10
		var send [][]byte
		for i := range profiles {
			block := short([]byte{1}, "/a/b")
			block = append(number(append(block, 0), length), bytes.Repeat([]byte{'a'}, length)...)
			id := uint64(1 + 2*i)
			b := append(binary.AppendUvarint([]byte{0, 0, byte(head)}, id), append(block, 0, 0, 0, 0, 0, 0)...)
			binary.LittleEndian.PutUint16(b, uint16(len(b)-2))
			send = append(send, b, wire.AppendReset(nil, id, wire.ResetCancelled, ""))
		}
		cost, all := attack{peers: peers, forgets: true, send: send}.run(t)
		for _, h := range all {
			if h.accepted != profiles || len(h.closed) > 0 {
				t.Fatalf("%d calls are accepted, %v", h.accepted, h.closed)
			}
		}
		if cost.kept > peers*each {
			t.Errorf("%+v", cost)
		}
	})
}

// TestABlockThatIsNotFinished costs what has come of it, and not for long.
func TestABlockThatIsNotFinished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const peers = 5
		parts := inParts(1, make([]byte, 4<<20))
		cost, all := attack{peers: peers, send: parts[:len(parts)-1]}.run(t)
		if cost.allocated > 4*cost.sent || cost.kept > 3*cost.sent {
			t.Errorf("%+v", cost)
		}
		pass(blockTime - time.Second)
		for _, h := range all {
			if told := h.told(); len(told) > 0 {
				t.Fatalf("the session ends too early: %v", told)
			}
		}
		pass(time.Minute)
		for _, h := range all {
			if told := h.told(); len(told) != 1 || !strings.Contains(told[0].Error(), "not finished") || h.goneFor() == 0 {
				t.Errorf("the session ends with %v", told)
			}
		}
	})
}

func TestABlockThatIsFinishedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		_, peer := met(t, Options{}, w)
		for id := uint64(1); id < 9; id += 2 {
			at := 5 // in the middle of the method
			if id == 1 {
				at = 0
			}
			peer.write(literal(wire.KindPart, id, opens[:at]...))
			pass(blockTime - time.Second)
			peer.write(literal(head, id, opens[at:]...))
			pass(time.Minute)
		}
		if told := w.told(); len(told) > 0 || len(w.streams) != 4 {
			t.Errorf("%d calls are accepted, the session ended with %v", len(w.streams), told)
		}
	})
}
