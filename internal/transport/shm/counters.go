package shm

import "sync/atomic"

// Counters are what has come of connections of this process, as a client or a
// server.
type Counters struct {
	Upgrades  uint64 // sockets that became shared memory
	Fallbacks uint64 // sockets that stayed what they are though that was offered
	Fallback  string // why the latest of these has; empty before
	Open      int64  // connections of shared memory that are open
	Memory    int64  // what rings and slabs of this side's take, in bytes
	Slabs     uint64 // messages that were put into slabs
	NoSlab    uint64 // messages that would have been, had one been free
	Bells     uint64 // bells that were rung, each for a peer that slept
}

var counters struct {
	upgrades, fallbacks, slabs, noSlab, bells atomic.Uint64
	open, memory                              atomic.Int64
	fallback                                  atomic.Pointer[string]
}

// Read returns the counters. Each is right by itself, and they need not be of one
// instant.
func Read() Counters {
	c := &counters
	now := Counters{
		Upgrades: c.upgrades.Load(), Fallbacks: c.fallbacks.Load(), Open: c.open.Load(), Memory: c.memory.Load(),
		Slabs: c.slabs.Load(), NoSlab: c.noSlab.Load(), Bells: c.bells.Load(),
	}
	if why := c.fallback.Load(); why != nil {
		now.Fallback = *why
	}
	return now
}

// count counts what came of an offer.
func count(err error) {
	if err == nil {
		counters.upgrades.Add(1)
		counters.open.Add(1)
		return
	}
	counters.fallbacks.Add(1)
	why := err.Error()
	counters.fallback.Store(&why)
}
