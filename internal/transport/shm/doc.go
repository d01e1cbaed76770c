// Package shm carries bytes between two processes of one machine through memory that both
// map. A client offers shared memory over a unix socket, and the server accepts or
// declines. After an accepted offer the frames of package mux go through the memory instead
// of the socket. docs/shm.md specifies the layout, and shows why no wake-up is lost.
//
// The server creates the memory. Each side writes only its own part and reads the peer's.
// Neither trusts what it reads: it checks cursors, and copies bytes before it parses them.
package shm

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
