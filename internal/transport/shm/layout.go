// Package shm carries bytes between two processes of one machine through memory that both
// map. A client offers shared memory over a unix socket, and the server accepts or
// declines. After an accepted offer the frames of package mux go through the memory instead
// of the socket. docs/shm.md specifies the layout, and shows why no wake-up is lost.
//
// The server creates the memory. Each side writes only its own part and reads the peer's.
// No side trusts its input: it checks cursors, and copies bytes before it parses them.
package shm

import "fmt"

// A layout says where things are in the file that the two sides of a connection share. It
// has four parts: the server's segment, the client's, the server's slabs and the client's.
// Each begins at a multiple of partAlign, which is a multiple of every system's page size,
// so that each can be mapped by itself.
type layout struct {
	ring  int // the length of each ring, in bytes
	slabs int // the length of each side's slabs, in bytes
}

// ours is the layout of the files that this side creates.
var ours = layout{ring: ringSize, slabs: slabsSize}

const partAlign = 64 << 10

// controlIs is the length of the page of words at the start of a segment, in bytes.
const controlIs = 4 << 10

// check returns why a layout that the peer has chosen cannot be used.
func (l layout) check() error {
	switch {
	case l.ring < minRing || l.ring > maxRing || l.ring&(l.ring-1) != 0:
		return fmt.Errorf("%w: its rings have %d bytes, which is not a power of two from %d to %d", errBroken, l.ring, minRing, maxRing)
	case l.slabs <= 0 || l.slabs > maxSlabs || l.slabs%partAlign != 0:
		return fmt.Errorf("%w: its slabs have %d bytes, which is not a multiple of %d up to %d", errBroken, l.slabs, partAlign, maxSlabs)
	}
	return nil
}

// segment returns the length of a segment: a page of words and a ring.
func (l layout) segment() int { return controlIs + l.ring }

// first returns how many bytes of a segment the handshake allocates.
func (l layout) first() int { return controlIs + min(extendBy, l.ring) }

// segmentAt and slabsAt return the offset of the server's or the client's part.
func (l layout) segmentAt(server bool) int64 {
	if server {
		return 0
	}
	return l.stride()
}

func (l layout) slabsAt(server bool) int64 {
	if server {
		return 2 * l.stride()
	}
	return 2*l.stride() + int64(l.slabs)
}

// size returns the length of the file.
func (l layout) size() int64 { return 2*l.stride() + 2*int64(l.slabs) }

// stride returns the distance between the two segments.
func (l layout) stride() int64 {
	return (int64(l.segment()) + partAlign - 1) &^ (partAlign - 1)
}

// The bounds of a ring's length, in bytes, and the length that this side chooses.
const (
	minRing  = 1 << 12
	maxRing  = 1 << 20
	ringSize = 1 << 18

	// slabsSize is the memory of each side for large messages, in bytes: 64 MiB, or 4 MiB
	// where addresses have 32 bits. It takes no pages before it is used.
	slabsSize = 4 << 20 << (4 * (^uint(0) >> 63))

	maxSlabs = 64 << 20 // the most that a client accepts from a server
)
