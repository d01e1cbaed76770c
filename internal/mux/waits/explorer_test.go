package waits

import (
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
)

// This file is built twice: into the tests, and with faults in the rules into a program (see
// package faulty). It needs only the standard library and the rules.
//
// A world is a model of two sessions and the connection between them. A step is what a goroutine of
// package mux does while it has the lock, or one read or write without the lock. All decisions are
// those of roles.go and windows.go.

const (
	kib     = 1 << 10
	promise = 64 * kib // the window of each direction of a call
	chunk   = 64 * kib // the largest piece of a message in a frame
)

// A scene is what happens between two sides.
type scene struct {
	name   string
	bare   bool // the sockets are bare, so that callers read and write themselves
	inline bool // the read loop of the callees' side runs handlers
	calls  []calls
	cancel bool // the context of the first call may end
	breaks bool // the connection may break
	timers bool // timers may fire
	grows  int  // the size up to which windows grow, in bytes
}

// calls has the sizes of a call's messages, up and down. If serial is set, one goroutine of each
// side sends and receives them; else one sends and another one receives. With one message, as of a
// unary call, it does not wait for credit.
type calls struct {
	serial bool
	task   bool // the callers are tasks of a loop, which do not read
	sizes  [2][]int
	takes  int // how many messages of those that are sent up are received; all if 0
}

var (
	ofTask = calls{serial: true, task: true, sizes: [2][]int{{1}, {1}}}
	small  = calls{serial: true, sizes: [2][]int{{1}, {1}}}
	large  = calls{serial: true, sizes: [2][]int{{150 * kib}, {150 * kib}}}
	upload = calls{sizes: [2][]int{{130 * kib, 1}, nil}}
)

var scenes = []scene{
	{name: "a unary call", bare: true, inline: true, timers: true, calls: []calls{small}},
	{name: "a large unary call", bare: true, calls: []calls{large}},
	{name: "an upload", bare: true, calls: []calls{{sizes: [2][]int{{300 * kib, kib, 90 * kib, 200 * kib}}}}},
	{name: "an upload over TLS", calls: []calls{{sizes: [2][]int{{300 * kib, kib, 90 * kib, 200 * kib}}}}},
	{name: "an upload of messages larger than what may wait", bare: true, calls: []calls{{sizes: [2][]int{{500 * kib, 300 * kib, 1}}}}},
	{name: "an upload whose window grows", bare: true, grows: 1200 * kib, calls: []calls{{sizes: [2][]int{{1100 * kib, 780 * kib, 340 * kib, 1}}}}},
	{name: "an upload of messages of a third of the window", bare: true, calls: []calls{{sizes: [2][]int{{21 * kib, 22 * kib, 20 * kib, 23 * kib, 40 * kib}}}}},
	{name: "an upload within the window that is not received", bare: true, calls: []calls{{sizes: [2][]int{{31 * kib, 40 * kib, 23 * kib}}, takes: 1}}},
	{name: "a large unary call of a task", bare: true, calls: []calls{{serial: true, task: true, sizes: [2][]int{{1}, {150 * kib}}}}},
	{name: "a handler on the read loop that waits for credit", bare: true, inline: true, calls: []calls{{serial: true, sizes: [2][]int{{1}, {150 * kib, 1}}}}},
	{name: "a unary call beside a handler that waits for credit", bare: true, inline: true, calls: []calls{{serial: true, sizes: [2][]int{{1}, {130 * kib, 1}}}, small}},
	{name: "an upload that is cancelled", bare: true, cancel: true, calls: []calls{upload}},
	{name: "an upload whose connection breaks", bare: true, breaks: true, calls: []calls{{sizes: [2][]int{{90 * kib, 40 * kib, 1}}}}},
	{name: "an upload over TLS whose connection breaks", breaks: true, calls: []calls{upload}},
	{name: "a stream both ways", bare: true, calls: []calls{{sizes: [2][]int{{100 * kib}, {1}}}}},
	{name: "two unary calls", bare: true, inline: true, calls: []calls{small, small}},
	{name: "two unary calls, one of which is cancelled", bare: true, cancel: true, calls: []calls{small, ofTask}},
	{name: "two unary calls whose connection breaks", bare: true, breaks: true, calls: []calls{small, ofTask}},
	{name: "a unary call beside an upload", bare: true, calls: []calls{upload, small}},
}

const (
	up   = iota // the callers' side, and the direction of what they send
	down        // the callees'
)

var names = [...]string{"the first call's sender", "the first call's receiver", "the second call's sender", "the second call's receiver"}

// A phase is where a goroutine is.
type phase uint8

const (
	absent  phase = iota // not started
	runs                 // it takes the lock next
	sleeps               // it is parked until it is woken
	spins                // it polls the connection
	parks                // it is parked in a read
	hasRead              // it has read, or was interrupted, and takes the lock next
	turns                // it has handled what it has read, and looks whether it reads on
	writes               // it holds the write lock and a batch
	handles              // a read loop whose handler runs, or a handler that the read loop is to run
	ended
)

// A batch is what one write puts on the connection.
type batch struct {
	filled bool
	credit [2]int32 // of what this side's goroutines have received
	reset  [2]bool
	call   int8
	bytes  int32 // a piece of a message of the call
}

func (b *batch) isEmpty() bool { return *b == batch{} }

// A goroutine has messages of a call to send and to receive.
type goroutine struct {
	phase   phase
	after   phase // what follows the phase writes
	waits   int8  // for which of its Conds it waits
	reading bool
	done    bool // its context has ended
	told    bool // the reading caller was told so
}

const (
	toSend = iota
	toReceive
)

// A half is a direction of a call, at one of its sides.
type half struct {
	out      Sender
	in       Receiver
	queued   int8  // messages that were queued for sending
	written  int32 // bytes that were written
	arrived  int32
	received int8 // messages
}

type side struct {
	roles    Roles
	past     bool // a deadline in the past interrupts reads
	idle     bool // the idle timer runs
	failed   bool // a read has failed
	ended    bool // the session has ended
	wakes    [2]bool
	readLoop goroutine
	writer   goroutine
	callers  [4]goroutine // two of each call: the one that sends, or the only one, and the one that receives
	halves   [2]half      // one of each call
	aborted  [2]bool      // the call was aborted
	control  batch        // credit and resets to be written
	in       batch        // what the goroutine that reads has read
	out      batch        // what the goroutine with the write lock writes
	handlers [2]int8      // handlers that the read loop is to run, as their index and one
	inline   bool         // it has begun to
	tired    bool         // it runs no more of them
	running  int8         // the handler that it runs, as its index and one
}

type world struct {
	sides  [2]side
	pipe   [2]batch // what is on its way to each side: one batch, or nothing
	broken bool
}

// An explorer visits all worlds that a scene can lead to.
type explorer struct {
	scene
	wrong string
}

func (x *explorer) sizes(call, dir int) []int { return x.calls[call].sizes[dir] }

// endOf returns how many bytes the first n messages have.
func (x *explorer) endOf(call, dir, n int) int32 {
	sum := 0
	for _, size := range x.sizes(call, dir)[:n] {
		sum += size
	}
	return int32(sum)
}

func (x *explorer) begin() world {
	var w world
	for i := range w.sides {
		s := &w.sides[i]
		s.roles.Reader = ReadLoop
		s.readLoop.phase, s.writer.phase = spins, sleeps
		if x.bare && i == up { // the read loop has retired
			s.roles.Reader, s.readLoop.phase, s.idle = Nobody, sleeps, true
		}
		for call := range x.calls {
			h := &s.halves[call]
			h.out.Credit = int64(Granted(promise))
			h.in = Receiver{Window: Granted(promise), Credit: Granted(promise)}
			if i == up {
				x.start(s, up, call)
			}
		}
	}
	return w
}

// start starts the goroutines of a call.
func (x *explorer) start(s *side, i, call int) {
	c := &x.calls[call]
	if c.serial || len(c.sizes[i]) > 0 {
		s.callers[2*call].phase = runs
	}
	if !c.serial && len(c.sizes[1-i]) > 0 {
		s.callers[2*call+1].phase = runs
	}
}

// do is Session.do.
func (s *side) do(t Task) {
	if t&WakeReadLoop != 0 && s.readLoop.phase == sleeps {
		s.wakes[0] = true
	}
	if t&StartReadLoop != 0 {
		s.running, s.tired = 0, true
		s.readLoop = goroutine{phase: turns}
	}
	s.idle = s.idle || t&StartIdleTimer != 0
	s.past = s.past || t&InterruptRead != 0
	if t&WakeWriter != 0 && s.writer.phase == sleeps {
		s.wakes[1] = true
	}
}

// wake is Session.wake, for a Cond of the call.
func (s *side) wake(call int, cond int8) {
	for k := 2 * call; k < 2*call+2; k++ {
		g := &s.callers[k]
		switch {
		case g.waits != cond:
		case g.reading:
			s.do(s.roles.StopCaller())
		case g.phase == sleeps:
			g.phase = runs
			s.roles.Woken()
		}
	}
}

func (s *side) backlog() int { return s.halves[0].out.Backlog + s.halves[1].out.Backlog }

func (s *side) wakeSender(call int) {
	if s.halves[call].out.TakesMore(s.backlog()) {
		s.wake(call, toSend)
	}
}

// abort is stream.abort.
func (x *explorer) abort(s *side, call int, tell bool) {
	if s.aborted[call] {
		return
	}
	h := &s.halves[call]
	s.aborted[call] = true
	s.control.reset[call] = tell
	s.control.credit[call] = 0
	h.out.Backlog, h.out.Queued = 0, 0
	s.wake(call, toSend)
	s.wake(call, toReceive)
}

// terminate is Session.terminate after the connection was lost.
func (x *explorer) terminate(s *side) {
	s.ended, s.roles.Ended = true, true
	for call := range x.calls {
		x.abort(s, call, false)
	}
	s.do(s.roles.CallWriter(true))
	s.do(s.roles.NeedReader())
}

// left returns how many bytes of the first queued message can be written.
func (x *explorer) left(s *side, i, call int) int32 {
	h := &s.halves[call]
	if h.out.Queued == 0 || h.out.Credit <= 0 {
		return 0
	}
	end := x.endOf(call, i, int(h.queued)-h.out.Queued+1)
	return min(end-h.written, chunk, int32(h.out.Credit))
}

func (x *explorer) hasQueued(s *side, i int) bool {
	return !s.control.isEmpty() || x.left(s, i, 0) > 0 || len(x.calls) > 1 && x.left(s, i, 1) > 0
}

// collect is Session.collect.
func (x *explorer) collect(s *side, i int) (b batch) {
	if s.ended || !x.hasQueued(s, i) {
		return b
	}
	b, s.control = s.control, batch{}
	b.filled = true
	for call := range x.calls {
		n := x.left(s, i, call)
		if n == 0 {
			continue
		}
		h := &s.halves[call]
		b.call, b.bytes = int8(call), n
		h.written += n
		h.out.Credit -= int64(n)
		h.out.Backlog -= int(n)
		if h.written == x.endOf(call, i, int(h.queued)-h.out.Queued+1) {
			h.out.Queued--
		}
		s.wakeSender(call)
		break
	}
	return b
}

// flush is Session.flushLocked. after is what g does next.
func (x *explorer) flush(s *side, i int, g *goroutine, after phase) {
	g.phase = after
	if !x.hasQueued(s, i) {
		return
	}
	do, ok := s.roles.TakeWriteLock(x.bare)
	if s.do(do); ok {
		x.writeOn(s, i, g, after)
	}
}

// writeOn collects the next batch for g, which holds the write lock, or releases the write lock.
func (x *explorer) writeOn(s *side, i int, g *goroutine, after phase) {
	if s.out = x.collect(s, i); s.out.filled {
		g.phase, g.after = writes, after
		return
	}
	g.phase, g.after = after, absent
	s.do(s.roles.ReleaseWriteLock(false, s.ended))
}

// await is Session.awaitLocked, or sleepLocked if g must not read.
func (x *explorer) await(s *side, i int, g *goroutine, cond int8, mayRead bool) {
	g.waits = cond
	if mayRead && x.bare && i == up && s.roles.CallerMayRead() {
		s.roles.ReadAsCaller()
		g.reading, g.told, g.phase = true, false, turns
		return
	}
	s.do(s.roles.Wait())
	g.phase = sleeps
}

// end ends the goroutine k, which may have run on the read loop.
func (s *side) end(k int) {
	s.callers[k] = goroutine{phase: ended}
	if s.running == int8(k)+1 {
		s.running = 0
		s.roles.Returned()
		s.readLoop.phase = turns
	}
}

// run is a step of a goroutine of a call: Send, Recv or Invoke. If it queues a message it may
// flush, or leave that to the writer.
func (x *explorer) run(s *side, i, k int, flushes bool) {
	g, call := &s.callers[k], k/2
	h, c := &s.halves[call], &x.calls[call]
	mayReceive := c.serial || k%2 == 1
	toTake := len(x.sizes(call, 1-i))
	if i == down && c.takes > 0 {
		toTake = c.takes
	}
	receives := mayReceive && int(h.received) < toTake
	mustSend := k%2 == 0 && int(h.queued) < len(x.sizes(call, i)) && !(c.serial && i == down && receives)
	waitsToSend := !c.serial || len(x.sizes(call, i)) > 1
	switch {
	case s.aborted[call] || !mustSend && !receives:
		s.end(k)
	case g.done:
		x.abort(s, call, true)
		x.flush(s, i, g, runs)
	case mustSend && waitsToSend && h.out.Lacks():
		x.await(s, i, g, toSend, !c.task)
	case mustSend && waitsToSend && h.out.Full(s.backlog()):
		x.await(s, i, g, toSend, false)
	case mustSend:
		h.out.Backlog += x.sizes(call, i)[h.queued]
		h.out.Queued++
		h.queued++
		if flushes {
			x.flush(s, i, g, runs)
		} else {
			s.do(s.roles.CallWriter(s.ended))
		}
	default:
		end := x.endOf(call, 1-i, int(h.received)+1)
		missing := int(end - h.arrived)
		size := x.sizes(call, 1-i)[h.received]
		switch {
		case missing <= 0:
			h.received++
			if x.grant(s, call, h.in.Received(size)) || !s.control.isEmpty() {
				s.do(s.roles.CallWriter(s.ended))
			}
		case missing < size && x.grant(s, call, h.in.ForMessage(missing, x.grows)):
			x.flush(s, i, g, runs)
		default:
			x.await(s, i, g, toReceive, !c.task)
		}
	}
}

func (x *explorer) grant(s *side, call, n int) bool {
	s.halves[call].in.Credit += n
	s.control.credit[call] += int32(n)
	return n > 0
}

// handle is Session.handleInput.
func (x *explorer) handle(s *side, i int, b batch) {
	for call := range x.calls {
		if b.reset[call] {
			x.abort(s, call, false)
		}
		if n := b.credit[call]; n > 0 && !s.aborted[call] {
			s.halves[call].out.Credit += int64(n)
			s.wakeSender(call)
		}
	}
	if b.bytes == 0 || s.aborted[b.call] {
		return
	}
	call := int(b.call)
	h := &s.halves[call]
	if h.in.Credit -= int(b.bytes); h.in.Credit < 0 {
		x.wrong = "the peer sends more than it has credit for"
	}
	begins := h.arrived == x.endOf(call, 1-i, x.messageAt(call, 1-i, h.arrived))
	h.arrived += b.bytes
	at := x.messageAt(call, 1-i, h.arrived)
	whole := h.arrived == x.endOf(call, 1-i, at)
	if i == down && begins && at <= 1 && h.received == 0 && s.callers[2*call].phase == absent && s.callers[2*call+1].phase == absent {
		x.start(s, down, call)
		if x.inline && x.calls[call].serial && whole && s.roles.MayRunHandler() {
			s.callers[2*call].phase = handles
			s.handlers[slices.Index(s.handlers[:], 0)] = int8(2*call) + 1
			s.inline = true
		}
	}
	if begins || whole { // a receiver has no use for a piece in the middle
		s.wake(call, toReceive)
	}
}

// messageAt returns how many messages end at or before a byte.
func (x *explorer) messageAt(call, dir int, at int32) (n int) {
	for n < len(x.sizes(call, dir)) && x.endOf(call, dir, n+1) <= at {
		n++
	}
	return n
}

// turn is what a reader does between two reads.
func (x *explorer) turn(s *side, i int, g *goroutine) {
	if g.reading {
		if s.roles.MustStop() || g.done || s.failed {
			g.reading, g.phase = false, runs
			s.do(s.roles.Leave(s.failed))
			return
		}
		g.phase = spins
		return
	}
	if s.inline {
		x.runInline(s, i, g)
		return
	}
	if s.failed {
		x.terminate(s)
		g.phase = ended
		return
	}
	if i == up && x.bare {
		if do, ok := s.roles.Retire(); ok {
			s.do(do)
			g.phase = sleeps
			return
		}
	}
	g.phase = spins
}

// runInline is Session.runInlineLocked.
func (x *explorer) runInline(s *side, i int, g *goroutine) {
	for s.handlers[0] != 0 {
		k := s.handlers[0]
		s.handlers[0], s.handlers[1] = s.handlers[1], 0
		s.callers[k-1].phase = runs
		if s.tired || s.failed || !s.roles.MayRunHandler() {
			continue // on a goroutine by itself
		}
		s.roles.RunHandler(s.handlers[0] != 0)
		s.running, g.phase = k, handles
		return
	}
	s.inline, s.tired, s.roles.BatchReplies = false, false, false
	x.flush(s, i, g, turns)
}

// steps calls visit with each step that is possible in w. event says that it need not happen.
func (x *explorer) steps(w world, visit func(who string, i int, what string, event bool, next world)) {
	for i := range w.sides {
		s := &w.sides[i]
		step := func(who, what string, f func(n *world, s *side)) {
			n := w
			f(&n, &n.sides[i])
			visit(who, i, what, false, n)
		}
		event := func(who, what string, f func(s *side)) {
			n := w
			f(&n.sides[i])
			visit(who, i, what, true, n)
		}
		for k := range s.callers {
			who := names[k]
			x.stepsOf(&w, i, who, func(s *side) *goroutine { return &s.callers[k] }, step)
			g := &s.callers[k]
			if g.phase == runs {
				step(who, "runs, and writes", func(n *world, s *side) { x.run(s, i, k, true) })
				if !x.calls[k/2].serial {
					step(who, "runs, and leaves writing to the writer", func(n *world, s *side) { x.run(s, i, k, false) })
				}
			}
			if x.cancel && i == up && k == 0 && !g.done && g.phase != ended {
				event(who, "is cancelled", func(s *side) { s.callers[k].done = true })
			}
			if g.done && g.phase == sleeps {
				step(who, "wakes, because its context has ended", func(n *world, s *side) {
					s.callers[k].phase = runs
					s.roles.Woken()
				})
			}
			if g.done && g.reading && g.phase == parks && !g.told {
				step(who, "is told that its context has ended", func(n *world, s *side) {
					s.callers[k].told = true
					s.do(s.roles.Interrupt())
				})
			}
		}
		x.stepsOf(&w, i, "the read loop", func(s *side) *goroutine { return &s.readLoop }, step)
		if s.readLoop.phase == sleeps && s.wakes[0] {
			step("the read loop", "wakes", func(n *world, s *side) {
				s.wakes[0] = false
				switch {
				case s.roles.Reader != ReadLoop:
				case s.failed:
					s.readLoop.phase = turns
				default:
					s.readLoop.phase = spins
				}
			})
		}
		if x.timers && s.running != 0 {
			event("a timer", "finds a slow handler", func(s *side) { s.do(s.roles.NeedReader()) })
		}
		if fires := func(s *side) { s.idle = false; s.do(s.roles.Idle()) }; s.idle && s.hasEnded() {
			step("the idle timer", "fires", func(_ *world, s *side) { fires(s) })
		} else if s.idle && x.timers {
			event("the idle timer", "fires", fires)
		}
		x.stepsOfWriter(&w, i, step)
	}
	if x.breaks && !w.broken {
		n := w
		n.broken = true
		visit("the connection", 0, "breaks", true, n)
	}
}

type stepper = func(who, what string, f func(n *world, s *side))

// stepsOf are the steps of a goroutine that reads, or writes what it has queued.
func (x *explorer) stepsOf(w *world, i int, who string, of func(*side) *goroutine, step stepper) {
	s := &w.sides[i]
	g := of(s)
	reads := func(n *world, s *side) {
		s.in, n.pipe[i] = n.pipe[i], batch{}
		of(s).phase = hasRead
	}
	fails := func(n *world, s *side) { s.failed, of(s).phase = true, hasRead }
	input := w.pipe[i].filled
	switch g.phase {
	case spins:
		if input {
			step(who, "finds input", reads)
		} else if w.broken {
			step(who, "finds the connection broken", fails)
		}
		step(who, "stops spinning", func(n *world, s *side) {
			g := of(s)
			switch {
			case !g.reading:
				g.phase = parks
			case s.roles.MustStop() || g.done:
				g.phase = turns
			default:
				s.roles.Park()
				g.phase = parks
			}
		})
	case parks:
		switch {
		case s.past && !g.reading:
			x.wrong = "the read of the read loop is interrupted"
		case input:
			step(who, "reads", reads)
		case w.broken:
			step(who, "reads the end", fails)
		}
		if s.past {
			step(who, "is interrupted", func(n *world, s *side) { of(s).phase = hasRead })
		}
	case hasRead:
		step(who, "handles what it has read", func(n *world, s *side) {
			g := of(s)
			if g.reading && s.roles.Unpark() {
				s.past = false
			}
			in := s.in
			s.in, g.phase = batch{}, turns
			if in.filled {
				x.handle(s, i, in)
			}
			if !s.inline {
				x.flush(s, i, g, turns)
			}
		})
	case turns:
		step(who, "looks whether it reads on", func(n *world, s *side) { x.turn(s, i, of(s)) })
	case writes:
		step(who, "writes", func(n *world, s *side) {
			g := of(s)
			if n.write(i, s.out) {
				x.writeOn(s, i, g, g.after)
				return
			}
			g.phase, g.after = g.after, absent
			s.do(s.roles.ReleaseWriteLock(true, s.ended))
		})
	}
}

// write writes a batch of side i, if there is room.
func (n *world) write(i int, b batch) bool {
	if n.broken || n.pipe[1-i].filled {
		return false
	}
	n.pipe[1-i] = b
	return true
}

// stepsOfWriter are those of Session.writeLoop.
func (x *explorer) stepsOfWriter(w *world, i int, step stepper) {
	s := &w.sides[i]
	switch {
	case s.writer.phase == sleeps && s.wakes[1]:
		step("the writer", "wakes", func(n *world, s *side) {
			s.wakes[1] = false
			switch {
			case s.ended:
				s.writer.phase = ended
			case s.roles.WriterMayWrite():
				s.roles.WriteLock = Taken
				if s.out.filled { // it was handed over
					s.writer.phase = writes
				} else {
					x.writeOn(s, i, &s.writer, sleeps)
				}
			}
		})
	case s.writer.phase == writes && w.broken:
		step("the writer", "finds the connection broken", func(n *world, s *side) {
			s.writer = goroutine{phase: ended}
			if s.ended {
				x.terminate(s)
				return
			}
			s.roles.Ended = true
			s.do(s.roles.NeedReader())
		})
	case s.writer.phase == writes && !w.pipe[1-i].filled:
		step("the writer", "writes", func(n *world, s *side) {
			n.write(i, s.out)
			s.out, s.writer = batch{}, goroutine{phase: sleeps}
			s.roles.WriteLock = Called
			s.wakes[1] = true
		})
	}
}

// check looks for what must not be in any world.
func (x *explorer) check(w *world) {
	for i := range w.sides {
		s := &w.sides[i]
		asleep, readers := 0, 0
		for k := range s.callers {
			if s.callers[k].phase == sleeps {
				asleep++
			}
			if s.callers[k].reading {
				readers++
			}
		}
		if p := s.readLoop.phase; p != sleeps && p != ended && p != handles {
			readers++
		}
		switch {
		case asleep != s.roles.Waiting:
			x.wrong = fmt.Sprintf("%d goroutines of side %d wait, and %d are counted", asleep, i, s.roles.Waiting)
		case readers > 1:
			x.wrong = fmt.Sprintf("%d goroutines of side %d read", readers, i)
		case asleep > 0 && (s.roles.Reader == Nobody || s.roles.Reader == Handler):
			x.wrong = fmt.Sprintf("a goroutine of side %d waits, and no goroutine reads", i)
		case s.roles.Reader == Nobody && !s.idle:
			x.wrong = fmt.Sprintf("no goroutine of side %d reads, and no timer ends that", i)
		case s.roles.Ended && s.roles.Reader == Nobody:
			x.wrong = fmt.Sprintf("the session of side %d has ended, and no goroutine reads", i)
		}
	}
}

// hasEnded reports whether all that was to happen has happened.
func (w *world) hasEnded() bool {
	for i := range w.sides {
		s := &w.sides[i]
		if !s.hasEnded() || w.broken && (s.readLoop.phase != ended || s.writer.phase != ended) {
			return false
		}
	}
	return true
}

// hasEnded reports whether no call is left.
func (s *side) hasEnded() bool {
	return !slices.ContainsFunc(s.callers[:], func(g goroutine) bool { return g.phase != absent && g.phase != ended })
}

// Find explores the scene with this name, or all if it is empty, until one shows a fault.
func Find(scene string) (worlds int, fault string) {
	for _, sc := range scenes {
		if scene != "" && scene != sc.name {
			continue
		}
		n, fault := sc.explore()
		worlds += n
		if fault != "" {
			return worlds, fault
		}
	}
	return worlds, ""
}

// explore visits all worlds. It returns how many there are, and what is wrong with one of them and
// how it came about; "" if nothing is. From each world steps must lead to the end, without an
// event.
func (sc scene) explore() (worlds int, fault string) {
	type node struct {
		from      int32 // the world before
		who, what string
		side      int8
	}
	type found struct {
		world
		node int32
	}
	x := &explorer{scene: sc}
	seed := maphash.MakeSeed()
	first := x.begin()
	nodes := []node{{}}
	seen := map[uint64]int32{maphash.Comparable(seed, first): 0}
	var edges [][2]int32 // from a world to one that a step leads to
	var ends []int32     // worlds in which all has ended
	story := func(at int32) string {
		var all []string
		for ; at != 0; at = nodes[at].from {
			n := nodes[at]
			all = append(all, fmt.Sprintf("  side %d: %s %s", n.side, n.who, n.what))
		}
		slices.Reverse(all)
		return strings.Join(all, "\n")
	}
	for queue := []found{{first, 0}}; len(queue) > 0; {
		f := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		if x.check(&f.world); x.wrong != "" {
			return len(nodes), fmt.Sprintf("%s: %s\n%s\n%+v", sc.name, x.wrong, story(f.node), f.world)
		}
		if f.hasEnded() {
			ends = append(ends, f.node)
		}
		x.steps(f.world, func(who string, i int, what string, event bool, next world) {
			for i := range next.sides { // the read loop stays for a few reads: two are as good as many
				next.sides[i].roles.Crowd = min(next.sides[i].roles.Crowd, 2)
			}
			key := maphash.Comparable(seed, next)
			to, ok := seen[key]
			if !ok {
				to = int32(len(nodes))
				seen[key] = to
				nodes = append(nodes, node{f.node, who, what, int8(i)})
				queue = append(queue, found{next, to})
			}
			if !event {
				edges = append(edges, [2]int32{f.node, to})
			}
		})
	}
	if at := stuck(len(nodes), edges, ends); at >= 0 {
		return len(nodes), fmt.Sprintf("%s: a goroutine waits for ever\n%s", sc.name, story(int32(at)))
	}
	return len(nodes), ""
}

// stuck returns the first of n worlds from which no edges lead to one of ends, or -1.
func stuck(n int, edges [][2]int32, ends []int32) int {
	slices.SortFunc(edges, func(a, b [2]int32) int { return int(a[1] - b[1]) })
	begin := make([]int32, n+1) // of the edges to each world
	for _, e := range edges {
		begin[e[1]+1]++
	}
	for i := range n {
		begin[i+1] += begin[i]
	}
	live := make([]bool, n)
	for len(ends) > 0 {
		at := ends[len(ends)-1]
		ends = ends[:len(ends)-1]
		if !live[at] {
			live[at] = true
			for _, e := range edges[begin[at]:begin[at+1]] {
				ends = append(ends, e[0])
			}
		}
	}
	return slices.Index(live, false)
}
