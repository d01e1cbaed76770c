package shm

import "golang.org/x/sys/unix"

// A side is the memory that one side writes and the other reads: two parts of a
// file, which both sides have.
type side struct {
	segment
	slabs   segment // for large messages
	file    *file   // that both are parts of; a side is one of its users
	slabsAt int64   // where in it slabs begin
	memory  *Memory // that the segment is taken from, and slabs are; nil for a peer's
}

// newSides maps the memory of both sides of a connection, this one's to write, out
// of m, and the peer's to read. Both become users of f.
func newSides(f *file, server bool, m *Memory) (mine, theirs side, err error) {
	n := f.layout.segment()
	if !m.take(n) {
		return side{}, side{}, errMemory
	}
	if mine, err = newSide(f, server, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		m.give(n)
		return side{}, side{}, err
	}
	mine.memory = m
	if theirs, err = newSide(f, !server, unix.PROT_READ); err != nil {
		mine.free()
		return side{}, side{}, err
	}
	return mine, theirs, nil
}

// newSide maps what the server or the client writes.
func newSide(f *file, server bool, prot int) (s side, err error) {
	l := f.layout
	if s.segment, err = f.part(l.segmentAt(server), l.segment(), prot); err != nil {
		return side{}, err
	}
	s.slabsAt = l.slabsAt(server)
	if s.slabs, err = f.part(s.slabsAt, l.slabs, prot); err != nil {
		s.segment.free()
		return side{}, err
	}
	f.use()
	s.file = f
	return s, nil
}

// free gives the memory back. Nobody uses it any more.
func (s side) free() {
	s.freeSegment()
	s.freeSlabs()
}

// freeSegment gives back what is not slabs.
func (s side) freeSegment() {
	n := len(s.segment)
	s.segment.free()
	if s.memory != nil {
		s.memory.give(n)
	}
}

// freeSlabs gives back the memory for large messages.
func (s side) freeSlabs() {
	s.slabs.free()
	s.file.release()
}
