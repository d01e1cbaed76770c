// Package shmstats has statistics about the shared-memory connections of a process.
package shmstats

import "github.com/nearcall/nearcall/internal/transport/shm"

// Stats are statistics about this process's connections of unix: and shm: targets, as a client and
// as a server. [Read] returns them.
type Stats struct {
	// Upgrades is how many unix sockets became shared memory. Fallbacks is how many did not
	// although the client offered shared memory: they stayed sockets, or were refused if the
	// target was shm:. Fallback is the reason of the latest fallback, empty if there was none.
	Upgrades  uint64
	Fallbacks uint64
	Fallback  string

	// Connections is how many connections are shared memory now. Bytes is how many bytes of this
	// process's memory they use now. nearcall.MaxSharedMemory and nearcall.WithMaxSharedMemory
	// limit Bytes.
	Connections int64
	Bytes       int64

	// LargeMessages is how many messages were written whole to shared memory, for the
	// peer to copy. NoRoom is how many were sent in pieces because there was no room.
	LargeMessages uint64
	NoRoom        uint64

	// Wakeups is how often a sleeping peer was woken.
	Wakeups uint64
}

// Read returns the statistics of this process since it started. Each value is exact, but together
// they are not a snapshot of one instant. It is safe for concurrent use and costs a few atomic
// loads. On systems without shared memory all values are zero.
func Read() Stats {
	c := shm.Read()
	return Stats{
		Upgrades: c.Upgrades, Fallbacks: c.Fallbacks, Fallback: c.Fallback,
		Connections: c.Open, Bytes: c.Memory,
		LargeMessages: c.Slabs, NoRoom: c.NoSlab, Wakeups: c.WakeUps,
	}
}
