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
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/testing/needs"
	"github.com/nearcall/nearcall/internal/wire"
)

// Each byte from a peer may cost this side a bounded amount of memory, retained or
// allocated. The tests send what once cost more.

// A hoarder accepts calls. Like handlers that do not return, it keeps them and their
// headers, unless forgets is set.
type hoarder struct {
	witness
	forgets  bool
	accepted int
	opens    []*link.CallHeader
}

func (h *hoarder) HandleStream(s link.Stream, o *link.CallHeader) error {
	h.accepted++
	if h.forgets {
		return nil
	}
	h.opens = append(h.opens, o)
	return h.witness.HandleStream(s, o)
}

// An attack is the input from each of several peers.
type attack struct {
	peers   int
	forgets bool // the handlers return at once
	places  bool // with shared memory
	send    [][]byte
}

// costs are the costs of an attack, in bytes: sent by the peers, allocated during the
// attack, and retained while the peers stay connected.
type costs struct{ sent, allocated, kept int }

// run runs the attack and returns its costs and the acceptors. It must be called in a
// synctest bubble.
func (a attack) run(t *testing.T) (c costs, all []*hoarder) {
	t.Helper()
	leak.Heap() // what earlier tests have left is not collected meanwhile
	conns := make([]net.Conn, a.peers)
	for i := range conns {
		mine, peers := net.Pipe()
		h := &hoarder{forgets: a.forgets}
		var conn Conn = mine
		if a.places {
			conn = placed{mine, newShelf(1), &shelf{places: map[int][]byte{0: make([]byte, 0, 1<<20)}}}
		}
		s := New(conn, Options{Window: 256 << 10, MaxWindow: 4 << 20, ConnWindow: 2 << 20}) // the options used for sockets
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
				break // the test checks why the session has ended
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

// collect runs the garbage collector often enough to empty the pools.
func collect() {
	for range 3 {
		runtime.GC()
	}
}

// inParts returns the frames of a call's head that is sent in PARTs.
func inParts(id uint64, block []byte) (all [][]byte) {
	const most = 60_000
	for ; len(block) > most; block = block[most:] {
		all = append(all, literal(wire.KindPart, id, block[:most]...))
	}
	return append(all, literal(head, id, block...))
}

func number(b []byte, all ...int) []byte {
	for _, v := range all {
		b = binary.AppendUvarint(b, uint64(v))
	}
	return b
}

// frameOf is literal for any stream id.
func frameOf(k wire.Kind, id uint64, body ...byte) []byte {
	b := append(binary.AppendUvarint([]byte{0, 0, byte(k)}, id), body...)
	binary.LittleEndian.PutUint16(b, uint16(len(b)-2))
	return b
}

// entriesOf returns a head of about size bytes, with entries of 2 bytes, and with the
// name and the profile of the call before.
func entriesOf(size int) []byte {
	n := size/2 - 10
	return slices.Concat(number([]byte{2, 1, 0}, n), bytes.Repeat([]byte{3, 0}, n))
}

// firstCall returns a head whose names get the numbers 0 and 1, with a new profile.
func firstCall() []byte {
	block := short([]byte{0}, "/a/b")
	block = append(block, 0, 0, 0, 0, 0, 0, 0, 1, 0)
	return literal(head, 1, append(short(block, "key"), 0)...)
}

func TestWhatHeadersOfManyEntriesCost(t *testing.T) {
	needs.Time(t)
	const calls = 2
	for name, c := range map[string]struct {
		size  int
		taken bool
	}{
		"as long as no header may be": {4 << 20, false},
		"as large as headers may be":  {16 << 20 / (32 + 3) * 2, true},
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
		const peers, profiles, length, each = 4, 256, 65_000, 200 << 10
		var send [][]byte
		for i := range profiles {
			block := short([]byte{1}, "/a/b")
			block = append(number(append(block, 0), length), bytes.Repeat([]byte{'a'}, length)...)
			id := uint64(1 + 2*i)
			b := frameOf(head, id, append(block, 0, 0, 0, 0, 0, 0)...)
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

// TestTheEndOfACallThatWasNeverMade checks that a side that makes no calls decodes no status,
// of which every two bytes can become a message.
func TestTheEndOfACallThatWasNeverMade(t *testing.T) {
	const most = 200 << 10
	details := append([]byte{8, 5}, bytes.Repeat([]byte{3<<3 | 2, 0}, 200_000)...)
	end := append(append(number([]byte{5, 0}, len(details)), details...), 0)
	for name, id := range map[string]uint64{"with the first": 2, "with the largest": wire.MaxUint &^ 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const room = 60_000
				var send [][]byte
				rest := end
				for ; len(rest) > room; rest = rest[room:] {
					send = append(send, frameOf(wire.KindPart, id, rest[:room]...))
				}
				send = append(send, frameOf(finish, id, rest...))
				cost, all := attack{peers: 1, send: send}.run(t)
				if closed := all[0].closed; len(closed) != 1 || !strings.Contains(closed[0].Error(), "was not opened") {
					t.Errorf("the session ends with %v", closed)
				}
				if cost.allocated > most {
					t.Errorf("%+v", cost)
				}
			})
		})
	}
}

// TestABlockThatIsNotFinished checks that an unfinished block takes no more memory than
// the bytes that have arrived, and only until blockTime.
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

// TestWhatMessagesCostThatNobodyReads sends messages of few bytes, as many as the
// credit of a call allows.
func TestWhatMessagesCostThatNobodyReads(t *testing.T) {
	needs.Time(t)
	const calls, window = 4, 256 << 10
	inPieces := func(id uint64) []byte { // followed by a message in one piece
		return slices.Concat(frameOf(begins, id, 2, 'a'), frameOf(piece, id, 'b'), frameOf(message, id))
	}
	for name, c := range map[string]struct {
		credit int // credit per message
		frames func(id uint64) []byte
	}{
		"of no byte":      {wire.MessageCost, func(id uint64) []byte { return frameOf(message, id) }},
		"of a byte":       {wire.MessageCost + 1, func(id uint64) []byte { return frameOf(message, id, 1) }},
		"in pieces":       {2*wire.MessageCost + 2, inPieces},
		"not quite small": {wire.MessageCost + maxPacked + 1, func(id uint64) []byte { return frameOf(message, id, make([]byte, maxPacked+1)...) }},
		"small and larger": {2*wire.MessageCost + maxPacked + 1, func(id uint64) []byte {
			return append(frameOf(message, id, make([]byte, maxPacked+1)...), frameOf(message, id)...)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var send [][]byte
				for i := range uint64(calls) {
					id := 2*i + 1
					send = append(send, frameOf(head, id, opens...), bytes.Repeat(c.frames(id), window/c.credit))
				}
				cost, all := attack{peers: 1, send: send}.run(t)
				if all[0].accepted != calls || len(all[0].closed) > 0 {
					t.Fatalf("%d calls are accepted, %v", all[0].accepted, all[0].closed)
				}
				if cost.kept > 6*cost.sent || cost.allocated > 12*cost.sent {
					t.Errorf("%+v", cost)
				}
			})
		})
	}
}

// TestWhatPlacesCostThatNobodyFetchesFrom checks that the credit of a call bounds how
// many placed messages it holds, each of which takes an object.
func TestWhatPlacesCostThatNobodyFetchesFrom(t *testing.T) {
	const calls, window = 20, 256 << 10
	for name, c := range map[string]struct {
		size, n int
		ends    bool // the session ends
	}{
		"empty":                   {0, window/wire.MessageCost - 1, true},
		"as small as they may be": {wire.MinPlace, window / wire.MinPlace, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var send [][]byte
				for i := range uint64(calls) {
					id := 2*i + 1
					send = append(send, frameOf(head, id, opens...), bytes.Repeat(frameOf(message|wire.FlagPlace, id, number(nil, c.size, 0)...), c.n))
				}
				cost, all := attack{peers: 1, places: true, send: send}.run(t)
				if ended := len(all[0].told()) > 0; ended != c.ends || !c.ends && all[0].accepted != calls {
					t.Fatalf("%d calls are accepted, %v", all[0].accepted, all[0].told())
				}
				if cost.kept > 100<<10 {
					t.Errorf("%+v", cost)
				}
			})
		})
	}
}
