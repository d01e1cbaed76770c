package shm

import "golang.org/x/sys/unix"

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
// What this side writes is reserved from m. A server also reserves the client's segment: the
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
// this process writes to that part. newSide reserves the segment from m, unless m is nil.
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
	f.use()
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
