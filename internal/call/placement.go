package call

import (
	"context"
	"os"
	"runtime/pprof"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/wait"
)

// placementOf returns where a unary handler runs: Inline or OnWorkers. caller is the caller's
// context, nil if the call came from another process. mayInline says that the calling goroutine
// is the caller's.
func (s *Server) placementOf(m *method, caller context.Context, mayInline bool) options.Placement {
	switch {
	case caller != nil && wait.TaskOf(caller) != nil:
		return options.OnWorkers // the caller is a task: it is suspended, and other tasks run
	case caller != nil && m.loop != nil && m.loop.Inside():
		return options.Inline // waiting for another task of this loop would deadlock
	case !mayInline || s.opts.PlaceHandlers == options.OnWorkers:
		return options.OnWorkers
	case s.opts.PlaceHandlers == options.Inline:
		return options.Inline
	case caller == nil || caller.Done() != nil: // a handler must not delay a caller that may leave
		return options.OnWorkers
	case s.labels:
		// The caller's goroutine may have labels that are not in its context. They
		// would be lost when label restores the context's.
		return options.OnWorkers
	}
	return options.Inline
}

// methodLabel is the goroutine label with the full method name of a handler's call.
const methodLabel = "grpc.method"

// labelsMethods reports whether handlers' goroutines are labelled with their methods. It reads the
// environment variable as grpc-go does: "all", "none", or a comma-separated list of NAME=true and
// NAME=false. The last entry for methodLabel wins; other entries are ignored.
func labelsMethods() bool {
	v := os.Getenv("GRPC_GO_SERVER_GOROUTINE_LABELS")
	on := strings.EqualFold(v, "all")
	for pair := range strings.SplitSeq(v, ",") {
		name, value, _ := strings.Cut(pair, "=")
		if !strings.EqualFold(strings.TrimSpace(name), methodLabel) {
			continue
		}
		switch value = strings.TrimSpace(value); {
		case strings.EqualFold(value, "true"):
			on = true
		case strings.EqualFold(value, "false"):
			on = false
		}
	}
	return on
}

// label labels the calling goroutine and the handler's context with the method. restore
// removes the goroutine's labels.
//
// The runtime does not tell which labels a goroutine has. If the handler runs on its caller's
// goroutine, restore therefore sets those of the caller's context, as [pprof.Do] does.
func (c *serverCall) label() (restore func()) {
	before := context.Background()
	if c.onCaller && c.open.Caller != nil {
		before = c.open.Caller
	}
	ctx := pprof.WithLabels(c.context(), pprof.Labels(methodLabel, c.open.Method))
	c.derive(ctx)
	pprof.SetGoroutineLabels(ctx)
	return func() { pprof.SetGoroutineLabels(before) }
}

// Inline handlers. A session can run a unary handler on the goroutine that called HandleStream, so
// that no worker has to be woken. If that goroutine reads for other calls too, it runs only
// handlers of quick methods. A timer finds the handlers that take longer and releases their
// goroutines: the session reads on with another one. Otherwise such a handler could wait for ever
// for a call that it delays.

// inlineCheckTime is the time between two checks of the inline handlers. The second check that
// finds a handler still running releases its goroutine.
const inlineCheckTime = 2 * time.Millisecond

// inlineCalls has the calls whose handlers run inline. A call is added when its handler begins:
// before that there is nothing to release. It is guarded by workers.mu.
type inlineCalls struct {
	seen  map[*serverCall]bool // the calls, and whether a check has seen their handlers run
	timer *time.Timer          // nil before the first call
	runs  bool                 // the timer is set
	added bool                 // a call was added since the last check
	ended bool
}

// inlineStream returns c's transport stream if c's handler may run inline there. Otherwise it returns nil.
func (c *serverCall) inlineStream() link.InlineStream {
	m, s := c.method, c.conn.server
	if m.unary == nil || m.loop != nil || s.opts.PlaceHandlers == options.OnWorkers || s.labels {
		return nil
	}
	l, ok := c.carried.transportStream.(link.InlineStream)
	if !ok || !l.MayRunInline(m.handlerTime.expected()) {
		return nil
	}
	return l
}

// An inlineHandler is a call whose handler runs inline.
type inlineHandler serverCall

// Run implements [link.Runner].
func (l *inlineHandler) Run() time.Duration {
	c := (*serverCall)(l)
	w := &c.conn.server.workers
	w.mu.Lock()
	w.inline.add(w, c)
	w.mu.Unlock()
	begun := time.Now()
	c.run()
	d := time.Since(begun)
	c.method.handlerTime.ran(d)
	w.finished(c)
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

// add adds c to the calls. workers.mu is held.
func (t *inlineCalls) add(w *workers, c *serverCall) {
	if t.seen == nil {
		t.seen = make(map[*serverCall]bool)
	}
	t.seen[c] = false
	t.added = true
	switch {
	case t.runs || t.ended:
		return
	case t.timer == nil:
		t.timer = time.AfterFunc(inlineCheckTime, w.checkInline)
	default:
		t.timer.Reset(inlineCheckTime)
	}
	t.runs = true
}

// end stops the timer for good, because the server has stopped. The calls were
// aborted, and their sessions have ended. workers.mu is held.
func (t *inlineCalls) end() {
	t.ended = true
	if t.timer != nil {
		t.timer.Stop()
	}
}

// checkInline releases the goroutines of handlers that were already running at the last check.
func (w *workers) checkInline() {
	var slow []*serverCall
	w.mu.Lock()
	t := &w.inline
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
	w.mu.Unlock()
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
