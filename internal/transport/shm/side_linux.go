package shm

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A side is the memory that one side of a connection writes and the other reads: a segment
// and slabs, both parts of one file.
type side struct {
	segment
	slabs   segment // for large messages; nil for the peer's, which are mapped when a message is read
	file    *file   // contains both; the side counts as one of its users
	slabsAt int64   // where the slabs begin in file
	memory  *Memory // from which the segment and this side's slabs are reserved; nil for the server's side on a client
}

// newSides maps the memory of both sides of a connection: this side's for writing, the
// peer's segment for reading. Both become users of f.
//
// This side's part is reserved from m. A server also reserves the client's segment: the
// client can free pages of the segment, and when the server then reads them, they are allocated at
// the server's expense.
func newSides(f *file, server bool, m *Memory) (mine, theirs side, err error) {
	if mine, err = newSide(f, server, true, m); err != nil {
		return side{}, side{}, err
	}
	if !server {
		m = nil
	}
	if theirs, err = newSide(f, !server, false, m); err != nil {
		mine.free()
		return side{}, side{}, err
	}
	return mine, theirs, nil
}

// newSide maps the part of the server, or of the client if server is false. write says whether
// this process writes to that part. If m is not nil, newSide reserves the segment from m.
func newSide(f *file, server, write bool, m *Memory) (s side, err error) {
	l := f.layout
	s = side{file: f, slabsAt: l.slabsAt(server), memory: m}
	if m != nil && !m.reserveRings(l.segment()) {
		return side{}, errMemory
	}
	defer func() {
		if err != nil {
			s.freeSegment()
			s = side{}
		}
	}()
	prot := unix.PROT_READ
	if write {
		prot |= unix.PROT_WRITE
	}
	if s.segment, err = f.part(l.segmentAt(server), l.segment(), prot); err != nil {
		return s, err
	}
	if write {
		if s.slabs, err = f.part(s.slabsAt, l.slabs, prot); err != nil {
			return s, err
		}
	}
	f.users.Add(1)
	return s, nil
}

// free frees the memory of the side, which must not be used any more.
func (s side) free() {
	s.freeSegment()
	s.freeSlabs()
}

// freeSegment unmaps the segment, and returns its bytes to memory.
func (s side) freeSegment() {
	if s.segment != nil {
		s.segment.free()
	}
	if s.memory != nil {
		s.memory.unreserve(s.file.layout.segment())
	}
}

// freeSlabs unmaps the slabs, and releases the file.
func (s side) freeSlabs() {
	if s.slabs != nil {
		s.slabs.free()
	}
	s.file.release()
}

// A segment is memory that one side writes and the other reads: a page of words, and the
// ring that the side sends through. docs/shm.md specifies its layout.
type segment []byte

// Offsets in a segment. Each word has two cache lines to itself, because processors fetch lines
// in pairs.
const (
	atMagic  = 0
	atTail   = 128
	atHead   = 256
	atAsleep = 384
	atWants  = 512
)

// magic is at the start of each segment.
const magic = "nearshm1"

// free unmaps the segment, which must not be used any more.
func (m segment) free()            { _ = unix.Munmap(m) }
func (m segment) ring() []byte     { return m[controlIs:] }
func (m segment) word(at int) word { return (*sharedWord)(unsafe.Pointer(&m[at])) }

// newSender returns the sending end of the ring that is in the segment mine.
func newSender(mine, theirs segment) sender {
	return sender{ring: mine.ring(), tail: mine.word(atTail), wants: mine.word(atWants), head: theirs.word(atHead), asleep: theirs.word(atAsleep)}
}

// newReceiver returns the receiving end of the ring that is in the segment theirs.
func newReceiver(mine, theirs segment) receiver {
	return receiver{ring: theirs.ring(), head: mine.word(atHead), asleep: mine.word(atAsleep), tail: theirs.word(atTail), wants: theirs.word(atWants)}
}

// This side's slabs are mapped at once, the peer's when the first message is read. The file is not
// sealed against writing, because such a seal would also keep the sides from freeing pages. So a
// peer can free pages of this side's slabs. That harms only the peer's own reads, and the next
// write to the pages allocates them again.

// ownSlabs are the [pages] of this side's slabs.
type ownSlabs struct{ side }

func (s ownSlabs) allocate(at, n int) error {
	return s.file.allocate(s.slabs[at:at+n], s.slabsAt+int64(at))
}

func (s ownSlabs) free()  { _ = unix.Madvise(s.slabs, unix.MADV_REMOVE) }
func (s ownSlabs) unmap() { s.freeSlabs() }

// theirSlabs are the [peerSlabs] of a connection.
type theirSlabs struct{ side }

func (s *theirSlabs) mapAll() []byte {
	m, err := s.file.part(s.slabsAt, s.file.layout.slabs, unix.PROT_READ)
	if err != nil {
		return nil
	}
	s.slabs = m
	return m
}

func (s *theirSlabs) read(b []byte, at int) error {
	_, err := s.file.ReadAt(b, s.slabsAt+int64(at))
	return err
}

// pageSize is the size of the pages that mincore counts.
var pageSize = os.Getpagesize()

func (s *theirSlabs) present(b []byte) bool {
	var pages [1<<maxSlab/(4<<10) + 1]byte
	from := uintptr(unsafe.Pointer(&b[0])) &^ uintptr(pageSize-1)
	n := uintptr(unsafe.Pointer(&b[len(b)-1])) + 1 - from
	count := (int(n) + pageSize - 1) / pageSize
	if count > len(pages) {
		return false
	}
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, from, n, uintptr(unsafe.Pointer(&pages[0]))); errno != 0 {
		return false
	}
	for _, page := range pages[:count] {
		if page&1 == 0 {
			return false
		}
	}
	return true
}

func (s *theirSlabs) close() { s.freeSlabs() }
