package shm

import "sync/atomic"

// Counters count the connections of this process, clients' and servers' together.
type Counters struct {
	Upgrades  uint64 // sockets that became shared memory
	Fallbacks uint64 // sockets that stayed sockets after an offer
	Fallback  string // why the latest fallback happened; empty if there was none
	Open      int64  // open connections of shared memory
	Memory    int64  // bytes reserved for rings and slabs
	Slabs     uint64 // messages that went through a slab
	NoSlab    uint64 // large messages that found no free slab
	WakeUps   uint64 // wake-ups sent to the peer
}

var counters struct {
	upgrades, fallbacks, slabs, noSlab, wakeUps atomic.Uint64
	open, memory                                atomic.Int64
	fallback                                    atomic.Pointer[string]
}

// Read returns the counters. They are read one by one, not as one snapshot.
func Read() Counters {
	c := &counters
	now := Counters{
		Upgrades: c.upgrades.Load(), Fallbacks: c.fallbacks.Load(), Open: c.open.Load(), Memory: c.memory.Load(),
		Slabs: c.slabs.Load(), NoSlab: c.noSlab.Load(), WakeUps: c.wakeUps.Load(),
	}
	if why := c.fallback.Load(); why != nil {
		now.Fallback = *why
	}
	return now
}

// count counts the outcome of an offer.
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
