package call

import (
	"sync/atomic"
	"time"
)

// A handlerTime tracks how long a method's handler takes. The goroutine that reads a connection
// runs the handlers of quick methods: nothing else is read meanwhile, but no goroutine has to be
// woken. Each method must first prove on workers that it is quick. A rather slow run now and then
// does no harm, and busy processors make all handlers slow at times. But after a long run the
// method must prove itself again, on many calls.
type handlerTime struct {
	score atomic.Int32 // the method counts as quick from provenScore on
	mean  atomic.Int32 // the mean time of quick runs, in ns; recent runs count most
}

const (
	quickRun = 250 * time.Microsecond // the longest run that is quick

	provenScore = 16                // how many quick runs a new method needs
	maxScore    = provenScore + 64  // the limit of score
	slowRun     = 24                // what a run that is not quick subtracts
	longRun     = provenScore - 256 // the score after a run of inlineCheckTime or more

	never = time.Hour // what expected returns for methods that are not quick
)

// expected returns how long the next run is likely to take. It returns the constant never if the
// method has not proved that it is quick.
func (t *handlerTime) expected() time.Duration {
	if t.score.Load() < provenScore {
		return never
	}
	return time.Duration(t.mean.Load())
}

// ran records that a run took d. Concurrent records may be lost.
func (t *handlerTime) ran(d time.Duration) {
	score := t.score.Load()
	switch {
	case d >= inlineCheckTime:
		t.score.Store(longRun)
		return
	case d > quickRun:
		t.score.Store(max(score-slowRun, longRun))
		return
	case score < maxScore:
		t.score.Store(score + 1)
	}
	mean := t.mean.Load()
	t.mean.Store(mean + (int32(d)-mean)/8)
}
