package shm

// A side is the memory that one side writes and the other reads.
type side struct {
	segment
	slabs  segment // for large messages
	memory *Memory // that the segment is taken from, and slabs are; nil for a peer's
}

// newSide makes this side's memory, out of m. The descriptors are for the peer.
func newSide(id nonce, m *Memory) (s side, files []int, err error) {
	if !m.take(controlIs + ringSize) {
		return side{}, nil, errMemory
	}
	defer func() {
		if err != nil {
			m.give(controlIs + ringSize)
		}
	}()
	var fd int
	if s.segment, fd, err = newSegment(ringSize, id); err != nil {
		return side{}, nil, err
	}
	files = []int{fd}
	if s.slabs, fd, err = newSlabs(slabsSize); err != nil {
		s.segment.free()
		CloseFiles(files)
		return side{}, nil, err
	}
	s.memory = m
	return s, append(files, fd), nil
}

// openSide returns the peer's memory.
func openSide(files []int, id nonce) (s side, err error) {
	if s.segment, err = openSegment(files[0], id); err != nil {
		return side{}, err
	}
	if s.slabs, err = openSlabs(files[1]); err != nil {
		s.segment.free()
		return side{}, err
	}
	return s, nil
}

// sideFiles is how many descriptors a side has for the peer.
const sideFiles = 2

// free gives the memory back. Nobody uses it any more.
func (s side) free() {
	s.freeSegment()
	s.slabs.free()
}

// freeSegment gives back what is not slabs.
func (s side) freeSegment() {
	s.segment.free()
	if s.memory != nil {
		s.memory.give(len(s.segment))
	}
}
