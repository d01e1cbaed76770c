package call

import (
	"sync/atomic"
	"time"
)

// A pace tracks whether a method's handler is quick. The goroutine that reads a connection
// runs the handlers of quick methods: nothing else is read meanwhile, but no goroutine has
// to be woken. Any method must prove itself on workers first. A run that is rather slow
// now and then does no harm, and busy processors make all handlers slow at times. But after
// a run that was long the method must prove itself again, on many calls.
type pace struct {
	score atomic.Int32 // the method counts as quick from provenScore on
}

const (
	// quickRun is the longest time that a quick handler takes. Others that use the
	// connection may have to wait for that long. To wake a goroutine can take as long.
	quickRun = 250 * time.Microsecond

	provenScore = 16                // what a new method's quick runs must add up to
	maxScore    = provenScore + 64  // the limit
	slowRun     = 24                // what a run that is not quick subtracts
	longRun     = provenScore - 256 // the score after a run of watchTime or more
)

// isQuick reports whether the next run is likely to be quick.
func (p *pace) isQuick() bool { return p.score.Load() >= provenScore }

// ran records that a run took d. Concurrent records may be lost.
func (p *pace) ran(d time.Duration) {
	switch score := p.score.Load(); {
	case d >= watchTime:
		p.score.Store(longRun)
	case d > quickRun:
		p.score.Store(max(score-slowRun, longRun))
	case score < maxScore:
		p.score.Store(score + 1)
	}
}
