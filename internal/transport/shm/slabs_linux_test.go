package shm

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearcall/nearcall/internal/scmrights"
)

// there returns how many bytes of a file are allocated.
func there(t *testing.T, f *file) int {
	t.Helper()
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		t.Fatal(err)
	}
	return int(stat.Blocks * 512)
}

// A peer can announce messages in places that it has not written, or whose pages it frees
// again.
func TestReadingWhatAPeerHasNotWrittenTakesNoMemory(t *testing.T) {
	bothSides(t, func(t *testing.T, c, peer *Conn) {
		const size = slabsSize / 16
		b, at, ok := peer.Place(size)
		if !ok {
			t.Fatal("there is no slab")
		}
		copy(b[:size], pattern(size))
		peer.Placed(at)
		if err := unix.Madvise(peer.mine.slabs[at+size/2:at+size], unix.MADV_REMOVE); err != nil {
			t.Fatal(err)
		}
		before := there(t, c.theirs.file)
		got := make([]byte, size)
		for at := 0; at < slabsSize; at += len(got) {
			if err := c.Hold(at, len(got)); err != nil {
				t.Fatal(err)
			}
			if err := c.Fetch(got, at); err != nil {
				t.Error(err)
			}
			want := make([]byte, len(got))
			if at == 0 {
				copy(want, pattern(size)[:size/2])
			}
			if !bytes.Equal(got, want) {
				t.Errorf("at %d something else is read than what is there", at)
			}
			c.Release(at)
		}
		if now := there(t, c.theirs.file); now != before {
			t.Errorf("reading has taken %d bytes", now-before)
		}
	})
}

// A side's pages are allocated before it writes, so that a write never faults, and those of slabs go back.
func TestWhatASideWritesIsAllocatedBefore(t *testing.T) {
	bothSides(t, func(t *testing.T, c, _ *Conn) {
		f := c.mine.file
		segments := there(t, f)
		if least := 2 * f.layout.first(); segments < least {
			t.Errorf("%d bytes of both segments are there, of %d", segments, least)
		}
		for wrote := 0; wrote < f.layout.ring; { // which takes what is put there, and no more
			n, err := c.TryWrite(make([]byte, 10_000))
			if wrote += n; err != nil || n == 0 && wrote < f.layout.ring {
				t.Fatal(n, err)
			}
			more := (wrote - 1) / extendBy * extendBy
			if now := there(t, f); now != segments+more {
				t.Errorf("%d bytes are there for %d more, of which %d were there", now-segments, wrote, extendBy)
			}
		}
		var placed []int
		all := there(t, f)
		for range 3 {
			before := there(t, f)
			_, at, ok := c.Place(1 << 20)
			if now := there(t, f); !ok || now != before+1<<20 {
				t.Errorf("%d bytes are there for a slab of 1 MiB, %v", now-before, ok)
			}
			c.Placed(at)
			placed = append(placed, at)
		}
		for _, at := range placed {
			if err := c.Returned(at); err != nil {
				t.Fatal(err)
			}
		}
		c.slabs.trim()
		if now := there(t, f); now != all {
			t.Errorf("%d bytes of slabs are there that nobody uses", now-all)
		}
	})
}

// A connection without large messages needs no addresses for the peer's slabs.
func TestAPeersSlabsAreMappedForTheFirstMessage(t *testing.T) {
	bothSides(t, func(t *testing.T, c, peer *Conn) {
		b, at, ok := peer.Place(100_000)
		if !ok {
			t.Fatal("there is no slab")
		}
		b = append(b, bytes.Repeat([]byte("slab"), 25_000)...)
		peer.Placed(at)
		if err := c.Hold(at, len(b)); err != nil {
			t.Fatal(err)
		}
		if c.fetches.mapped != nil {
			t.Error("they are mapped before")
		}
		got := make([]byte, len(b))
		if err := c.Fetch(got, at); err != nil || !bytes.Equal(got, b) {
			t.Errorf("the message is another, %v", err)
		}
		if n := len(c.fetches.mapped); n != slabsSize {
			t.Errorf("%d bytes are mapped", n)
		}
		if n := c.mine.memory.read.Load(); n != 2*partAlign {
			t.Errorf("%d bytes are reserved for 100,000 that were read", n)
		}
		c.Release(at)
		_ = c.Close()
		if n := c.mine.memory.read.Load(); n != 0 {
			t.Errorf("%d bytes are reserved after the end", n)
		}
	})
}

// After the end, messages are read though both sides have filled their slabs, and the file is freed
// while they wait. There is room for what has arrived, and for no more.
func TestWhatHasArrivedIsReadAfterTheEnd(t *testing.T) {
	for _, side := range []string{"client", "server"} {
		t.Run(side, func(t *testing.T) {
			leavesNothing(t, func() {
				client, server := connected(t)
				c, peer := client, server
				if side == "server" {
					c, peer = server, client
				}
				c.fetches.memory = NewMemory(slabsSize, false)
				const size = slabsSize / 4
				var all []int
				for i := range slabsSize / size {
					b, at, ok := peer.Place(size)
					if !ok {
						t.Fatalf("there is no slab for message %d", i)
					}
					copy(b[:size], bytes.Repeat([]byte{byte(i + 1)}, size))
					peer.Placed(at)
					if err := c.Hold(at, size); err != nil {
						t.Fatal(err)
					}
					all = append(all, at)
					_, own, _ := c.Place(size)
					c.Placed(own)
				}
				_ = peer.Close()
				_ = c.Close()
				eventually(t, "the file is closed", func() bool { return c.theirs.file.users.Load() == 0 })
				for i, at := range all {
					if err := c.Check(at); err != nil {
						t.Fatal(err)
					}
					b := make([]byte, size)
					if err := c.Fetch(b, at); err != nil || !bytes.Equal(b, bytes.Repeat([]byte{byte(i + 1)}, size)) {
						t.Errorf("message %d is another, %v", i, err)
					}
					c.Release(at)
				}
			})
		})
	}
}

// A page of a mapping that cannot be had ends the read, and not the process.
func TestAPageThatCannotBeHadIsAnError(t *testing.T) {
	fd, err := unix.MemfdCreate("short", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	const size = 1 << 20
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	m, err := unix.Mmap(fd, 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(m) }()
	b := make([]byte, size)
	if err := copyMapped(b, m); err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(fd, size/2); err != nil {
		t.Fatal(err)
	}
	if err := copyMapped(b, m); err == nil || !strings.Contains(err.Error(), "no memory") {
		t.Errorf("half of the pages are gone: %v", err)
	}
	if err := copyMapped(b, m[:size/2]); err != nil {
		t.Errorf("the pages that are left cannot be read after that: %v", err)
	}
}

// The messages of a peer that has allocated less memory for them than they would cost this
// side are not read.
func TestMessagesThatCostThePeerNothingAreNotRead(t *testing.T) {
	bothSides(t, func(t *testing.T, c, peer *Conn) {
		const size = slabsSize / 8 // larger than the ring, whose pages the peer might not have
		for i := range 3 {
			_, at, ok := peer.Place(size)
			if !ok || at != i*size {
				t.Fatal("there is no slab")
			}
			peer.Placed(at)
			if err := c.Hold(at, size); err != nil {
				t.Fatal(err)
			}
			_, own, _ := c.Place(size) // pages of this side do not count
			c.Placed(own)
		}
		for wrote := 0; wrote < c.mine.file.layout.ring; { // nor do those of its ring
			n, err := c.TryWrite(make([]byte, extendBy))
			if wrote += n; err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Check(2 * size); err != nil {
			t.Errorf("messages that are there: %v", err)
		}
		if err := unix.Madvise(peer.mine.slabs[:size], unix.MADV_REMOVE); err != nil {
			t.Fatal(err)
		}
		if err := c.Check(2 * size); !errors.Is(err, errBroken) {
			t.Errorf("of three messages one is not there: %v", err)
		}
		c.Release(0)
		if err := c.Check(2 * size); err != nil {
			t.Errorf("two messages that are there: %v", err)
		}
		spare := peer.mine.file.layout.first() // of the peer's ring, which may pay for messages
		if err := unix.Madvise(peer.mine.slabs[size:size+2*spare], unix.MADV_REMOVE); err != nil {
			t.Fatal(err)
		}
		if err := c.Check(2 * size); !errors.Is(err, errBroken) {
			t.Errorf("%d bytes are not there, and pages of this side's ring pay for them: %v", 2*spare, err)
		}
	})
}

func TestNoTwoMessagesAreAtOnePlace(t *testing.T) {
	bothSides(t, func(t *testing.T, c, _ *Conn) {
		hold := func(at, n int, may bool) {
			t.Helper()
			if err := c.Hold(at, n); (err == nil) != may || err != nil && !errors.Is(err, errBroken) {
				t.Errorf("%d bytes at %d: %v", n, at, err)
			}
		}
		hold(partAlign, 2*partAlign+1, true) // up to offset 4*partAlign
		hold(partAlign, 1, false)
		hold(3*partAlign, 1, false)
		hold(0, partAlign+1, false)
		hold(0, partAlign, true)
		hold(4*partAlign, 1, true)
		hold(5*partAlign+1, 1, true)
		hold(5*partAlign, 1, false) // another has some of the same partAlign bytes
		hold(6*partAlign, 0, false)
		hold(slabsSize-partAlign, partAlign, true)
		hold(slabsSize-partAlign, partAlign+1, false)
		c.Release(partAlign)
		hold(3*partAlign, 1, true)
		hold(2*partAlign, partAlign, true)
	})
}

// An answer that is not confirmed takes addresses of the server, but no memory.
func TestAnAnswerThatIsNotConfirmedTakesNoMemory(t *testing.T) {
	a, b := sockets(t)
	scmrights.Accept(a)
	if err := send(a, theOffer()); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if c, _, err := answer(b); err == nil {
			_ = c.Close()
		}
	}()
	defer func() {
		_ = a.Close()
		<-done
	}()
	_, files, err := receive(a, make([]byte, maxBody))
	defer closeFiles(files)
	if err != nil || len(files) != answerFiles {
		t.Fatalf("%d descriptors, %v", len(files), err)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(files[0], &stat); err != nil {
		t.Fatal(err)
	}
	if n := stat.Blocks * 512; n > 2*partAlign { // one page of each segment, however large pages are
		t.Errorf("%d bytes are there", n)
	}
}

// FuzzPlaces lets a peer name any place for its messages, in any state of the connection. They are
// received, dropped, or kept when the connection ends.
func FuzzPlaces(f *testing.F) {
	for _, script := range scripts(100, 200) {
		f.Add(script)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		const slabs = 16 * partAlign
		memory := NewMemory(slabs/2, false)
		peers := &testSlabs{n: slabs}
		c := &Conn{theirs: side{file: &file{layout: layout{ring: minRing, slabs: slabs}}}}
		c.fetches.slabs, c.fetches.memory, c.fetches.there = peers, memory, func() int { return peers.n }
		next := func() (b int) {
			if len(script) > 0 {
				b, script = int(script[0]), script[1:]
			}
			return b
		}
		type place struct{ at, n int }
		var held []place
		receive := func(p place) {
			if err := c.Check(p.at); err == nil {
				_ = c.Fetch(make([]byte, p.n), p.at)
			}
			c.Release(p.at)
		}
		closed := false
		for len(script) > 0 {
			switch op := next() % 8; {
			case op < 4:
				p := place{(next() - 8) * partAlign / 4, (next() - 8) * partAlign / 8}
				if op == 3 {
					p = place{p.at << (next() % 50), p.n << (next() % 50)}
				}
				free := !closed && p.at >= 0 && p.n > 0 && p.n <= slabs && p.at <= slabs-p.n
				for _, h := range held {
					free = free && (p.at/partAlign > (h.at+h.n-1)/partAlign || h.at/partAlign > (p.at+p.n-1)/partAlign)
				}
				if err := c.Hold(p.at, p.n); (err == nil) != free {
					t.Fatalf("%d bytes at %d are held beside %v: %v", p.n, p.at, held, err)
				}
				if free {
					held = append(held, p)
				}
			case op < 6 && len(held) > 0:
				i := next() % len(held)
				receive(held[i])
				held = slices.Delete(held, i, i+1)
			case op == 6:
				peers.n = next() * partAlign / 8
			case op == 7 && !closed:
				c.fetches.close()
				closed = true
			}
		}
		if !closed {
			c.fetches.close()
		}
		for _, p := range held {
			receive(p)
		}
		eventually(t, "the slabs are closed", func() bool {
			c.fetches.mu.Lock()
			defer c.fetches.mu.Unlock()
			return peers.closed == 1
		})
		if c.fetches.used != (units{}) || memory.kept.Load() != 0 {
			t.Errorf("%v are used after the end, and %d bytes are counted", c.fetches.used, memory.kept.Load())
		}
	})
}
