package shm

import (
	"bytes"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/nearcall/nearcall/internal/link"
)

// testSlabs are a peer's slabs, of which it has allocated n bytes.
type testSlabs struct {
	n      int
	closed int
	mapped []byte
	reads  atomic.Int64 // calls of read
	absent bool         // pages are not in memory
	fails  error        // of read
	during func()       // called during each read
}

func (s *testSlabs) read(b []byte, at int) error {
	s.reads.Add(1)
	if s.during != nil {
		s.during()
	}
	for i := range b {
		b[i] = byte((at + i) / partAlign)
	}
	return s.fails
}

func (s *testSlabs) present([]byte) bool {
	if s.during != nil {
		s.during()
	}
	return !s.absent
}

func (s *testSlabs) mapAll() []byte { return s.mapped }
func (s *testSlabs) close()         { s.closed++ }

func fetchingOf(s *testSlabs, m *Memory) *fetching {
	return &fetching{slabs: s, memory: m, there: func() int { return s.n }}
}

// arrives holds a message of n bytes in each of the given pieces of the slabs.
func arrives(t *testing.T, f *fetching, n int, pieces ...int) {
	t.Helper()
	for _, piece := range pieces {
		if err := f.hold(piece*partAlign, n); err != nil {
			t.Fatal(err)
		}
	}
}

// receives fetches such a message, as its receiver does, and releases it.
func receives(f *fetching, n, piece int) error {
	at := piece * partAlign
	defer f.release(at)
	if err := f.check(at); err != nil {
		return err
	}
	b := make([]byte, n)
	if err := f.fetch(b, at); err != nil {
		return err
	}
	if !bytes.Equal(b, bytes.Repeat([]byte{byte(piece)}, n)) {
		return errors.New("it is another")
	}
	return nil
}

// What counts is what is unread, however large the peer's part of the file is. What there is no
// room for is lost, the latest messages first, and the error says why.
func TestUnreadMessagesAreKeptAfterTheEnd(t *testing.T) {
	for option, shared := range map[string]bool{"WithMaxSharedMemory": false, "MaxSharedMemory": true} {
		synctest.Test(t, func(t *testing.T) {
			memory := NewMemory(100, shared)
			used := memory.used.Load
			if !shared { // what others use does not count
				memory.used.Store(100)
				used = memory.kept.Load
			}
			slabs := &testSlabs{n: 1 << 30}
			f := fetchingOf(slabs, memory)
			arrives(t, f, 30, 7, 3, 9, 1, 5)
			if err := receives(f, 30, 3); err != nil {
				t.Error(err)
			}
			if used() != 0 {
				t.Errorf("%d bytes are counted, of a peer that lives", used())
			}
			f.close()
			synctest.Wait()
			if f.hold(0, 1) == nil {
				t.Error("a message arrives after the end")
			}
			if slabs.closed != 1 || used() != 90 {
				t.Errorf("the slabs were closed %d times, and %d bytes are counted", slabs.closed, used())
			}
			slabs.n = 0
			for _, piece := range []int{9, 1, 7} {
				if err := receives(f, 30, piece); err != nil {
					t.Errorf("the message in piece %d: %v", piece, err)
				}
			}
			err := receives(f, 30, 5)
			if !errors.Is(err, link.ErrExhausted) || !strings.Contains(err.Error(), " 100 bytes that "+option+" allows 90 are in use") || !strings.Contains(err.Error(), "a message of 30") {
				t.Errorf("the last message: %v", err)
			}
			if slabs.closed != 1 || used() != 0 {
				t.Errorf("after that the slabs were closed %d times, and %d bytes are counted", slabs.closed, used())
			}
		})
	}
}

// While messages are copied, others are received.
func TestMessagesAreReceivedWhileTheEndCopiesThem(t *testing.T) {
	for name, fails := range map[string]error{"each can be read": nil, "none can": errPages} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				memory := NewMemory(1000, false)
				slabs := &testSlabs{n: 1000, fails: fails}
				f := fetchingOf(slabs, memory)
				arrives(t, f, 100, 1, 2, 3, 4)
				receive := func(pieces ...int) {
					t.Helper()
					for _, piece := range pieces {
						if err := receives(f, 100, piece); !errors.Is(err, fails) {
							t.Errorf("the message in piece %d: %v", piece, err)
						}
					}
				}
				slabs.during = func() { // the first is being copied
					slabs.during = nil
					receive(1, 3)
					if slabs.closed != 0 {
						t.Error("the slabs are closed")
					}
				}
				f.close()
				synctest.Wait()
				receive(4, 2)
				if slabs.closed != 1 || memory.kept.Load() != 0 {
					t.Errorf("the slabs were closed %d times, and %d bytes are counted", slabs.closed, memory.kept.Load())
				}
			})
		})
	}
}

// Messages of a peer that has not spent the memory for them are lost at the end, and cost nothing.
func TestMessagesWithoutPagesAreNotKept(t *testing.T) {
	for _, n := range []int{59, -36864} {
		memory := NewMemory(100, false)
		slabs := &testSlabs{n: n}
		f := fetchingOf(slabs, memory)
		arrives(t, f, 30, 0, 1)
		before := f.check(0)
		f.close()
		after := receives(f, 30, 0)
		for _, err := range []error{before, after} {
			if !errors.Is(err, errBroken) || strings.Contains(err.Error(), "-") {
				t.Errorf("of 60 bytes %d are there: %v", n, err)
			}
		}
		if receives(f, 30, 1) == nil || slabs.closed != 1 || slabs.reads.Load() != 0 || memory.kept.Load() != 0 {
			t.Errorf("the slabs were closed %d times and read %d times, and %d bytes are counted", slabs.closed, slabs.reads.Load(), memory.kept.Load())
		}
	}
}

func TestSlabsThatNobodyReadsGoWithTheConnection(t *testing.T) {
	memory, slabs := NewMemory(100, false), &testSlabs{n: 70}
	f := fetchingOf(slabs, memory)
	arrives(t, f, 30, 0)
	if err := receives(f, 30, 0); err != nil {
		t.Error(err)
	}
	f.close()
	if slabs.closed != 1 || memory.kept.Load() != 0 {
		t.Errorf("they were closed %d times, %d bytes are counted", slabs.closed, memory.kept.Load())
	}
}
