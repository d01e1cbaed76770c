package nearcall

import "github.com/nearcall/nearcall/internal/transport/shm"

// SharedMemoryStats are what has come of this process's connections by unix and shm
// targets since it began, its clients' and its servers' alike.
type SharedMemoryStats struct {
	Upgrades  uint64 // unix sockets that became shared memory
	Fallbacks uint64 // unix sockets that stayed what they are, or were refused, though the client offered more
	Fallback  string // why the latest of these has; empty where there is none

	Connections int64 // that are shared memory now
	Bytes       int64 // that they take of this process's, now: see [MaxSharedMemory]

	LargeMessages uint64 // that were put into memory for the peer to copy
	NoRoom        uint64 // that would have been, had there been room: they went in pieces
	Wakeups       uint64 // of a peer that slept
}

// ReadSharedMemoryStats returns the stats of this process. Each figure is right by
// itself; together they need not be of one instant. Any goroutine may call it, at
// the cost of a few loads. Where there is no shared memory all is zero.
func ReadSharedMemoryStats() SharedMemoryStats {
	c := shm.Read()
	return SharedMemoryStats{
		Upgrades: c.Upgrades, Fallbacks: c.Fallbacks, Fallback: c.Fallback,
		Connections: c.Open, Bytes: c.Memory,
		LargeMessages: c.Slabs, NoRoom: c.NoSlab, Wakeups: c.Bells,
	}
}
