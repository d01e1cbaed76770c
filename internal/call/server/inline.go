package server

import (
	"sync/atomic"
	"time"

	"github.com/nearcall/nearcall/internal/link"
)

// Inline handlers. A session can run a unary handler on the goroutine that called HandleStream, so
// that no worker has to be woken. If that goroutine reads for other calls too, it runs only
// handlers of quick methods. A timer finds the handlers that take longer and releases their
// goroutines: the session reads on with another one. Otherwise such a handler could wait for ever
// for a call that it delays.

// inlineCheckTime is the time between two checks of the inline handlers. The second check that
// finds a handler still running releases its goroutine.
const inlineCheckTime = 2 * time.Millisecond

// inlineCalls has the calls whose handlers run inline. A call is added when its handler begins:
// before that there is nothing to release. It is guarded by the scheduler's mu.
type inlineCalls struct {
	seen  map[*serverCall]bool // the calls, and whether a check has seen their handlers run
	timer *time.Timer          // nil before the first call
	runs  bool                 // the timer is set
	added bool                 // a call was added since the last check
	ended bool
}

// An inlineHandler is a call whose handler runs inline.
type inlineHandler serverCall

// Run implements [link.Runner].
func (l *inlineHandler) Run() time.Duration {
	c := (*serverCall)(l)
	s := &c.conn.server.scheduler
	s.mu.Lock()
	s.addInlineLocked(c)
	s.mu.Unlock()
	begun := time.Now()
	c.run()
	d := time.Since(begun)
	c.method.handlerTime.ran(d)
	s.finished(c)
	return d
}

// runTimed calls run. It records how long the handler takes if that decides whether the method's
// next handler may run inline.
func (c *serverCall) runTimed() {
	if c.carried == nil || c.method.unary == nil || c.method.handlerTime.expected() < never {
		c.run()
		return
	}
	begun := time.Now()
	c.run()
	c.method.handlerTime.ran(time.Since(begun))
}

// addInlineLocked adds c to the calls whose handlers run inline.
func (s *scheduler) addInlineLocked(c *serverCall) {
	t := &s.inline
	if t.seen == nil {
		t.seen = make(map[*serverCall]bool)
	}
	t.seen[c] = false
	t.added = true
	switch {
	case t.runs || t.ended:
		return
	case t.timer == nil:
		t.timer = time.AfterFunc(inlineCheckTime, s.checkInline)
	default:
		t.timer.Reset(inlineCheckTime)
	}
	t.runs = true
}

// endLocked stops the timer for good, because the server has stopped. The calls were
// aborted, and their sessions have ended.
func (t *inlineCalls) endLocked() {
	t.ended = true
	if t.timer != nil {
		t.timer.Stop()
	}
}

// checkInline releases the goroutines of handlers that were already running at the last check.
func (s *scheduler) checkInline() {
	var slow []*serverCall
	s.mu.Lock()
	t := &s.inline
	for c, seen := range t.seen {
		if seen {
			slow = append(slow, c)
			delete(t.seen, c)
		} else {
			t.seen[c] = true
		}
	}
	// Starting a timer costs more than letting it run.
	if t.runs, t.added = len(t.seen) > 0 || t.added, false; t.runs && !t.ended {
		t.timer.Reset(inlineCheckTime)
	}
	s.mu.Unlock()
	for _, c := range slow {
		c.method.handlerTime.ran(inlineCheckTime) // before the goroutine reads more calls of the method
		if r := c.carried; r.use() {
			r.transportStream.(link.InlineStream).Release()
			r.unuse()
		}
	}
}

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
	slowRun     = 24                // a run that is not quick subtracts this
	longRun     = provenScore - 256 // the score after a run of inlineCheckTime or more

	never = time.Hour // the result of expected for methods that are not quick
)

// expected returns how long the next run is likely to take. It returns the constant never for a
// method that has not proved to be quick.
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
