package call

import (
	"time"

	"github.com/nearcall/nearcall/internal/link"
)

// Handlers on lent goroutines. A session can lend the goroutine that called HandleStream to a
// unary handler, so that no worker has to be woken. Other calls may need that goroutine, because
// it reads for them. In that case only quick methods get it, and a timer watches their handlers.
// If a handler takes longer, its goroutine is released: the session continues without it.
// Otherwise the handler could even wait for the very calls that it delays.

// watchTime is the time between two looks at the handlers on lent goroutines. The second look
// that finds a handler still running releases its goroutine.
const watchTime = 2 * time.Millisecond

// watchLasts is how many looks the timer makes, at least, after a call was added. Starting a timer
// costs more than letting it run.
const watchLasts = 25

// A watch has the calls whose handlers run on lent goroutines. A call is added when its handler
// begins: before that there is nothing to release. The watch is guarded by workers.mu.
type watch struct {
	calls     []*serverCall // each at its lentIndex - 1
	timer     *time.Timer   // nil before the first call
	runs      bool          // the timer is set
	idleLooks int           // looks since a call was added
	ended     bool
}

// lender returns c's carrier if the carrier lends a goroutine on which c may run. Otherwise it
// returns nil.
func (c *serverCall) lender() link.Lender {
	m, s := c.method, c.conn.server
	if m.unary == nil || m.loop != nil || s.cfg.Placement == OnWorkers || s.labels {
		return nil
	}
	l, ok := c.carried.carrier.(link.Lender)
	if !ok || !l.Lends(m.handlerTime.expected()) {
		return nil
	}
	return l
}

// A lentHandler is a call that runs on a lent goroutine.
type lentHandler serverCall

// Run implements [link.Runner].
func (l *lentHandler) Run() time.Duration {
	c := (*serverCall)(l)
	w := &c.conn.server.workers
	w.mu.Lock()
	w.watch.add(w, c)
	w.mu.Unlock()
	begun := time.Now()
	c.run()
	d := time.Since(begun)
	c.method.handlerTime.ran(d)
	w.finished(c)
	return d
}

// runTimed calls run. It records how long the handler takes if that decides whether the method's
// next handler may run on a lent goroutine.
func (c *serverCall) runTimed() {
	if c.carried == nil || c.method.unary == nil || c.method.handlerTime.expected() < never {
		c.run()
		return
	}
	begun := time.Now()
	c.run()
	c.method.handlerTime.ran(time.Since(begun))
}

// add adds c to the watch. workers.mu is held.
func (t *watch) add(w *workers, c *serverCall) {
	t.calls = append(t.calls, c)
	c.lentIndex = int32(len(t.calls))
	t.idleLooks = 0
	switch {
	case t.runs || t.ended:
		return
	case t.timer == nil:
		t.timer = time.AfterFunc(watchTime, w.look)
	default:
		t.timer.Reset(watchTime)
	}
	t.runs = true
}

// remove removes c from the watch, if it is there. workers.mu is held.
func (t *watch) remove(c *serverCall) {
	if c.lentIndex == 0 {
		return
	}
	last := len(t.calls) - 1
	t.calls[c.lentIndex-1] = t.calls[last]
	t.calls[c.lentIndex-1].lentIndex = c.lentIndex
	t.calls[last] = nil
	t.calls = t.calls[:last]
	c.lentIndex = 0
}

// end stops the timer for good, because the server has stopped. The calls of the watch were
// aborted, and their sessions have ended. workers.mu is held.
func (t *watch) end() {
	t.ended = true
	if t.timer != nil {
		t.timer.Stop()
	}
}

// look releases the goroutines of handlers that were already running at the last look.
func (w *workers) look() {
	var slow []*serverCall
	w.mu.Lock()
	t := &w.watch
	for i := 0; i < len(t.calls); {
		c := t.calls[i]
		if !c.seenRunning {
			c.seenRunning = true
			i++
			continue
		}
		slow = append(slow, c)
		t.remove(c) // remove moves another call to index i
	}
	t.idleLooks++
	if t.runs = len(t.calls) > 0 || t.idleLooks < watchLasts; t.runs && !t.ended {
		t.timer.Reset(watchTime)
	}
	w.mu.Unlock()
	for _, c := range slow {
		c.method.handlerTime.ran(watchTime) // before the goroutine reads more calls of the method
		if r := c.carried; r.use() {
			r.carrier.(link.Lender).Release()
			r.unuse()
		}
	}
}
