// Package shm carries bytes between two processes of one machine through memory
// that both see. It is set up over a unix socket, by an offer that a client makes
// and a server takes or declines, and begins where that socket would have gone
// on: with what package mux writes. docs/shm.md has the layout, and why nobody
// sleeps through what the other does.
//
// The server makes the memory. Each side writes to its own part alone, and the
// other reads it. Neither trusts what it reads there: cursors are checked, and
// bytes copied before anybody looks at them.
package shm

// The lengths that a ring may have, in bytes, and the one it has.
const (
	minRing  = 1 << 12
	maxRing  = 1 << 20
	ringSize = 1 << 18

	// slabsSize is what each side has for large messages, in bytes: 64 MiB, of
	// which nothing is there before it is used, or 4 MiB where addresses are few.
	slabsSize = 4 << 20 << (4 * (^uint(0) >> 63))

	maxSlabs = 64 << 20 // that a client takes from a server
)
