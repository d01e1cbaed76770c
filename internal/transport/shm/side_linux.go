package shm

import "golang.org/x/sys/unix"

// A side is the memory that one side writes and the other reads: two parts of a
// file, which both sides have.
type side struct {
	segment
	slabs   segment // for large messages; nil for a peer's, which are not mapped
	file    *file   // that both are parts of; a side is one of its users
	slabsAt int64   // where in it slabs begin
	memory  *Memory // that the segment is out of, and slabs of this side's; nil for a server's
}

// newSides maps the memory of both sides of a connection, this one's to write, and
// the peer's to read. Both become users of f.
//
// Out of m comes what this side writes. A server has the client's segment out of m
// as well: the client may take its pages away, and reading it takes them again.
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

// newSide maps what the server or the client writes, to write it or to read it, with
// its segment out of m, unless that is nil. A client's segment is allocated by then.
func newSide(f *file, server, write bool, m *Memory) (s side, err error) {
	l := f.layout
	s = side{file: f, slabsAt: l.slabsAt(server), memory: m}
	if m != nil && !m.reserve(l.segment()) {
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
		if !server {
			if err = f.allocateSegment(server); err != nil {
				return s, err
			}
		}
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

// free gives the memory back. Nobody uses it any more.
func (s side) free() {
	s.freeSegment()
	s.freeSlabs()
}

// freeSegment gives back what is not slabs.
func (s side) freeSegment() {
	if s.segment != nil {
		s.segment.free()
	}
	if s.memory != nil {
		s.memory.unreserve(s.file.layout.segment())
	}
}

// freeSlabs gives back the memory for large messages.
func (s side) freeSlabs() {
	if s.slabs != nil {
		s.slabs.free()
	}
	s.file.release()
}
