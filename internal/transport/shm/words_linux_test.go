package shm

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// TestWordsAreSequentiallyConsistent: when a receiver goes to sleep while a sender
// publishes, at least one of them sees what the other has stored. Otherwise a wake-up is
// lost.
func TestWordsAreSequentiallyConsistent(t *testing.T) {
	const rounds = 200_000
	receiver, sender := connected(t)
	type side struct {
		own, other word
		round      atomic.Uint64 // that this side has begun
		_          [128]byte     // so that the two rounds do not share a cache line
		saw        []uint64      // what other was in each round
	}
	sides := [2]side{
		{own: receiver.mine.word(atAsleep), other: receiver.theirs.word(atTail)},
		{own: sender.mine.word(atTail), other: sender.theirs.word(atAsleep)},
	}
	var both sync.WaitGroup
	for i := range sides {
		s, peer := &sides[i], &sides[1-i]
		s.saw = make([]uint64, rounds+1)
		both.Go(func() {
			for round := uint64(1); round <= rounds; round++ {
				s.round.Store(round)
				for spins := 0; peer.round.Load() < round; spins++ {
					if spins%1000 == 999 {
						runtime.Gosched()
					}
				}
				s.own.Store(round)
				s.saw[round] = s.other.Load()
			}
		})
	}
	both.Wait()
	blind := 0
	for round := 1; round <= rounds; round++ {
		if sides[0].saw[round] < uint64(round) && sides[1].saw[round] < uint64(round) {
			blind++
		}
	}
	if blind > 0 {
		t.Errorf("in %d of %d rounds neither side saw what the other had stored", blind, rounds)
	}
}
