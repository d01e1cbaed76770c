package mux

import (
	"context"
	"errors"
	"os"
	"runtime"
	"runtime/pprof"
	"time"

	"github.com/nearcall/nearcall/internal/mux/waits"
	"github.com/nearcall/nearcall/internal/wait"
	"github.com/nearcall/nearcall/internal/wire"
)

// reading is the state of the goroutine that reads the connection. That is either the read loop, a
// goroutine of the session, or the reading caller, which waits for its reply.
//
// A caller reads only over a bare socket and only if no other caller waits. Then it reads its own
// reply, and no goroutine has to be woken. In all other cases the read loop reads: on a side that
// takes calls, with several concurrent callers, and over other connections. Between sequential
// calls no goroutine reads; after idleTime without a call the read loop takes over. [waits.Roles]
// has the rules.
type reading struct {
	// Owned by the reading goroutine.
	newCalls   []newCall // calls to offer to the acceptor once all input was handled
	dec        wire.Decoder
	parts      parts   // of a block whose last frame has not arrived
	in         *buffer // begins with input that was not handled yet; may be nil if there is none
	room       int     // capacity of the next buffer, if larger than readBuffer
	begun      bool    // the peer's first line was read
	isMet      bool    // the peer's HELLO was read; written under mu
	spinBudget spinBudget

	// Guarded by mu.
	caller     *wait.Cond // the Cond of the caller that reads; nil if none does
	callerDone bool       // the reading caller's context has ended
	term       uint64     // number of callers that have read so far
	accepting  *stream    // the stream that is being offered to the acceptor
	readLoop   wait.Cond
	readErr    error       // a reading caller's read error, which the read loop handles
	idle       *time.Timer // wakes the read loop; nil until the read loop first retires
	idleSet    bool
	idleTerm   uint64 // the value of term when idle was set
}

const (
	readBuffer = 16 << 10  // usual size of the read buffer, in bytes
	maxRead    = 256 << 10 // its largest size, reached if reads keep filling it

	// fewCalls is the number of active calls up to which a reader spins. If more calls are active,
	// frames arrive in batches, and a reader that has parked reads a whole batch.
	fewCalls = 16

	// idleTime is how long no goroutine reads after the last call. Frames that no call
	// waits for, such as PINGs, are delayed by up to this time.
	idleTime = 5 * time.Millisecond
)

// await waits until another goroutine wakes spot. It returns ctx's error once ctx is done.
// Wake-ups may be spurious, so the caller checks its condition again. spot belongs to st. Called
// with mu held; mu is released while it waits.
func (s *Session) await(ctx context.Context, st *stream, spot *wait.Cond) error {
	if st.caller && st.waiter == nil && s.raw != nil && s.roles.CallerMayRead() {
		return s.readAsCaller(ctx, spot)
	}
	return s.sleep(ctx, st, spot)
}

// sleep is await for a goroutine that must not read.
func (s *Session) sleep(ctx context.Context, st *stream, spot *wait.Cond) error {
	w := st.waiter
	if w == nil {
		w = &s.parkers
	}
	s.do(s.roles.Wait())
	defer wait.OnAbandon(w, st)()
	if ctx.Done() == nil {
		spot.Wait(&s.mu, w)
		return nil
	}
	err := spot.WaitContext(ctx, &s.mu, w)
	if err != nil {
		s.roles.Woken()
	}
	return err
}

// wake wakes the goroutine that waits for the peer at spot, if any, whether it reads or is parked.
// If it is parked, wake returns its Parker, for the caller to unpark. Only wake may wake
// goroutines that wait in await or sleep: one of them might read, and roles counts the
// others. mu is held.
func (s *Session) wake(spot *wait.Cond) wait.Parker {
	if s.reading.caller == spot {
		s.do(s.roles.StopCaller())
		return nil
	}
	p := spot.Wake()
	if p != nil {
		s.roles.Woken()
	}
	return p
}

// do performs the tasks that a rule has returned. mu is held.
func (s *Session) do(t waits.Task) {
	if t == 0 {
		return
	}
	if t&waits.WakeReadLoop != 0 {
		wait.Unpark(s.reading.readLoop.Wake())
	}
	if t&waits.StartReadLoop != 0 {
		s.replaceReadLoop()
	}
	if t&waits.StartIdleTimer != 0 {
		s.startReadIdle()
	}
	if t&waits.InterruptRead != 0 {
		_ = s.conn.SetReadDeadline(longAgo)
	}
	if t&waits.WakeWriter != 0 {
		wait.Unpark(s.writing.writer.Wake())
	}
}

var longAgo = time.Unix(1, 0)

// readAsCaller reads for all calls until spot is woken or ctx is done. Called with mu held; mu
// is released while it reads.
func (s *Session) readAsCaller(ctx context.Context, spot *wait.Cond) (err error) {
	s.roles.ReadAsCaller()
	s.reading.caller = spot
	s.reading.term++
	s.reading.callerDone = false
	for !s.roles.MustStop() && s.reading.readErr == nil {
		if err = wait.Err(ctx); err == nil && s.reading.callerDone {
			err = wait.DoneErr(ctx)
		}
		if err != nil {
			break
		}
		s.reading.readErr = s.receive(ctx)
	}
	s.reading.caller = nil
	s.do(s.roles.Leave(s.reading.readErr != nil))
	return err
}

// onCallerDone tells the reading caller of the given term that its context is done. It does
// nothing if that caller has left.
func (s *Session) onCallerDone(term uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reading.caller != nil && s.reading.term == term {
		s.reading.callerDone = true
		s.do(s.roles.Interrupt())
	}
}

// startReadIdle starts the timer that wakes the read loop, if it is not running. mu is held.
func (s *Session) startReadIdle() {
	switch {
	case s.reading.idleSet:
		return
	case s.reading.idle == nil:
		s.reading.idle = time.AfterFunc(idleTime, s.onReadIdle)
	default:
		s.reading.idle.Reset(idleTime)
	}
	s.reading.idleSet, s.reading.idleTerm = true, s.reading.term
}

func (s *Session) onReadIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reading.idleSet = false
	if s.reading.term != s.reading.idleTerm && s.roles.Reader == waits.Nobody { // a caller has read since
		s.startReadIdle()
		return
	}
	s.do(s.roles.Idle())
}

// readLoop is the read loop. It is the first goroutine to read, and the last.
func (s *Session) readLoop() {
	s.mu.Lock()
	if s.writing.broken == nil {
		_ = s.conn.SetReadDeadline(time.Now().Add(s.opts.HelloTime))
	}
	s.mu.Unlock()
	s.reading.in = newBuffer(max(readBuffer, len(s.opts.First)))
	n := copy(s.readSpace(), s.opts.First)
	s.opts.First = nil
	err := s.handleRead(n, nil, time.Now())
	s.mu.Unlock()
	s.readOn(err)
}

// readOn is the rest of the read loop's work. err is the error of its last read. If the read loop
// runs a handler that does not return soon, another goroutine takes its place.
func (s *Session) readOn(err error) {
	pprof.SetGoroutineLabels(context.Background()) // not its creator's: it may run handlers
	s.mu.Lock()
	for err == nil {
		if len(s.inline.calls) > 0 && !s.runInline() {
			return
		}
		if s.readLoopRetires() {
			for s.roles.Reader != waits.ReadLoop {
				s.reading.readLoop.Wait(&s.mu, nil)
			}
			if err = s.reading.readErr; err != nil {
				break
			}
		}
		err = s.receive(context.Background())
	}
	for _, c := range s.inline.calls[s.inline.next:] {
		go c.run.Run()
	}
	s.inline.calls = nil
	s.mu.Unlock()
	s.reading.parts.drop()
	s.endReading(err)
	s.reading.in.Free()
	s.reading.in = nil
	s.loops.Done()
}

// readLoopRetires lets the read loop leave reading to callers, if the rules allow it, and reports
// whether they do. mu is held.
func (s *Session) readLoopRetires() bool {
	if s.raw == nil || s.acceptor != nil || !s.reading.isMet {
		return false
	}
	do, ok := s.roles.Retire()
	s.do(do)
	return ok
}

// receive waits for input and handles it. If a caller reads, receive returns early once
// another goroutine wakes it. Called with mu held; mu is released in between.
func (s *Session) receive(ctx context.Context) error {
	if s.roles.Waiting > 1 {
		s.roles.Crowd = waits.CrowdLasts
	}
	asCaller := s.reading.caller != nil
	parks := false // the spin budget is spent, so park at once
	if s.raw != nil && !s.opts.Config.NoSpinning && s.readsForFew() {
		if parks = !s.reading.spinBudget.allows(); !parks && startSpinning() {
			if got, err := s.spin(ctx, asCaller); got || err != nil {
				return err
			}
		}
	}
	if asCaller {
		if s.roles.MustStop() || wait.Err(ctx) != nil {
			return nil
		}
		s.roles.Park()
	}
	term := s.reading.term
	s.mu.Unlock()
	var stop func() bool
	if ctx.Done() != nil {
		stop = wait.AfterFunc(ctx, func() { s.onCallerDone(term) })
	}
	if s.reading.in != nil && len(s.reading.in.B) > 0 {
		runtime.Gosched() // the peer is in the middle of a write: let it finish, and read more at once
	}
	in := s.readSpace()
	var begun time.Time
	if parks {
		begun = time.Now()
	}
	n, err := s.conn.Read(in)
	if parks && n > 0 {
		s.reading.spinBudget.parked(time.Since(begun))
	}
	if stop != nil {
		stop()
	}
	if asCaller {
		s.mu.Lock()
		if s.roles.Unpark() {
			s.resetReadDeadline()
			if errors.Is(err, os.ErrDeadlineExceeded) {
				err = nil
			}
		}
		s.mu.Unlock()
	}
	return s.handleRead(n, err, time.Now())
}

// readSpace returns the free part of the read buffer.
func (s *Session) readSpace() []byte {
	if s.reading.in == nil {
		s.reading.in = newBuffer(max(s.reading.room, readBuffer))
	}
	return s.reading.in.B[len(s.reading.in.B):cap(s.reading.in.B)]
}

// handleRead handles n bytes and the error of a read that ended at about the time now. Called
// without mu; it returns with mu held.
func (s *Session) handleRead(n int, err error, now time.Time) error {
	if n > 0 {
		s.reading.in.B = s.reading.in.B[:len(s.reading.in.B)+n]
		if wrong := s.handleInput(); wrong != nil {
			err = &inputError{wrong}
		}
	}
	s.mu.Lock()
	if n > 0 {
		s.life.Hears(now)
		s.silent.reads++
	}
	if len(s.inline.calls) == 0 {
		s.flushQueued()
	}
	return err
}

// flushQueued writes queued frames, such as control frames and messages for which credit has
// arrived. Called with mu held; mu is released in between.
func (s *Session) flushQueued() {
	if s.hasQueued() {
		s.flush(false)
		s.mu.Lock()
	}
}

// resetReadDeadline sets the deadline for the next reads: none, or lastWords from now if a write
// has failed. mu is held.
func (s *Session) resetReadDeadline() {
	var due time.Time
	if s.writing.broken != nil {
		due = time.Now().Add(lastWords)
	}
	_ = s.conn.SetReadDeadline(due)
}

// readsForFew reports whether so few calls wait for input that the next frame is likely
// to arrive soon and alone. mu is held.
func (s *Session) readsForFew() bool {
	switch {
	case !s.reading.isMet:
		return false
	case s.acceptor != nil:
		return s.active() <= fewCalls
	case s.reading.caller != nil:
		return s.roles.Waiting == 0
	}
	return s.roles.Waiting > 0 && s.active() <= fewCalls
}
