package mux

import (
	"context"
	"errors"
	"io"
	"os"
	"runtime"
	"runtime/pprof"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nearcall/nearcall/internal/link"
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
	// fewCalls is the number of active calls up to which a reader spins. If more calls are active,
	// frames arrive in batches, and a reader that has parked reads a whole batch.
	fewCalls = 16

	// idleTime is how long no goroutine reads after the last call. Frames that no call
	// waits for, such as PINGs, are delayed by up to this time.
	idleTime = 5 * time.Millisecond
)

// awaitLocked waits until another goroutine wakes spot. It returns ctx's error once ctx is done.
// Wake-ups may be spurious, so the caller checks its condition again. spot belongs to st. mu is
// released while it waits.
func (s *Session) awaitLocked(ctx context.Context, st *stream, spot *wait.Cond) error {
	if st.caller && st.waiter == nil && s.raw != nil && s.roles.CallerMayRead() {
		return s.readAsCallerLocked(ctx, spot)
	}
	return s.sleepLocked(ctx, st, spot)
}

// sleepLocked is awaitLocked for a goroutine that must not read.
func (s *Session) sleepLocked(ctx context.Context, st *stream, spot *wait.Cond) error {
	w := st.waiter
	if w == nil {
		w = &s.parkers
	}
	s.doLocked(s.roles.Wait())
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

// readAsCallerLocked reads for all calls until spot is woken or ctx is done. mu is released while it
// reads.
func (s *Session) readAsCallerLocked(ctx context.Context, spot *wait.Cond) (err error) {
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
		s.reading.readErr = s.receiveLocked(ctx)
	}
	s.reading.caller = nil
	s.doLocked(s.roles.Leave(s.reading.readErr != nil))
	return err
}

// onCallerDone tells the reading caller of the given term that its context is done. It does
// nothing if that caller has left.
func (s *Session) onCallerDone(term uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reading.caller != nil && s.reading.term == term {
		s.reading.callerDone = true
		s.doLocked(s.roles.Interrupt())
	}
}

// startReadIdleLocked starts the timer that wakes the read loop, if it is not running.
func (s *Session) startReadIdleLocked() {
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
		s.startReadIdleLocked()
		return
	}
	s.doLocked(s.roles.Idle())
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
		if len(s.inline.calls) > 0 && !s.runInlineLocked() {
			s.mu.Unlock()
			return
		}
		if s.readLoopRetiresLocked() {
			for s.roles.Reader != waits.ReadLoop {
				s.reading.readLoop.Wait(&s.mu, nil)
			}
			if err = s.reading.readErr; err != nil {
				break
			}
		}
		err = s.receiveLocked(context.Background())
	}
	for _, c := range s.inline.calls[s.inline.next:] {
		go c.run.Run()
	}
	s.inline.calls = nil
	s.mu.Unlock()
	if s.reading.parts.b != nil {
		s.reading.parts.finish(0).Free()
	}
	s.endReading(err)
	s.reading.in.Free()
	s.reading.in = nil
	s.loops.Done()
}

// replaceReadLoopLocked makes a new goroutine the read loop, while the old one runs a handler.
func (s *Session) replaceReadLoopLocked() {
	s.inline.running = nil
	s.inline.spent = maxInline + 1
	go s.readOn(nil)
}

// readLoopRetiresLocked lets the read loop leave reading to callers, if the rules allow it, and
// reports whether they do.
func (s *Session) readLoopRetiresLocked() bool {
	if s.raw == nil || s.acceptor != nil || !s.reading.isMet {
		return false
	}
	do, ok := s.roles.Retire()
	s.doLocked(do)
	return ok
}

// receiveLocked waits for input and handles it. If a caller reads, it returns early once
// another goroutine wakes it. mu is released in between.
func (s *Session) receiveLocked(ctx context.Context) error {
	if s.roles.Waiting > 1 {
		s.roles.Crowd = waits.CrowdLasts
	}
	asCaller := s.reading.caller != nil
	var begun time.Time
	parks := false // the spin budget says to park at once
	if s.raw != nil && !s.opts.Config.NoSpinning && s.readsForFewLocked() {
		begun = time.Now()
		if parks = !s.reading.spinBudget.allows(begun); !parks && startSpinning() {
			if got, err := s.spinLocked(ctx, asCaller, begun); got || err != nil {
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
			s.resetReadDeadlineLocked()
			if errors.Is(err, os.ErrDeadlineExceeded) {
				err = nil
			}
		}
		s.mu.Unlock()
	}
	return s.handleRead(n, err, time.Now())
}

// handleRead handles n bytes and the error of a read that ended at about the time now. Called
// without mu; it returns with mu held.
func (s *Session) handleRead(n int, err error, now time.Time) error {
	if n > 0 {
		s.reading.in.B = s.reading.in.B[:len(s.reading.in.B)+n]
		if wrong := s.handleInput(); wrong != nil {
			err = &inputError{wrong}
			s.reading.newCalls = nil // they were not offered, and a place that they hold would keep the session
		}
	}
	s.mu.Lock()
	if n > 0 {
		s.life.Hears(now)
		s.reading.spinBudget.readAt = now
		s.silent.reads++
	}
	if len(s.inline.calls) == 0 {
		s.flushLocked(false) // control frames, and messages for which credit has arrived
	}
	return err
}

// An inputError is a violation of the protocol, or the peer's BYE. No further input is handled.
type inputError struct{ error }

func (m *inputError) Unwrap() error { return m.error }

// endReading ends the session after a reader's error err.
func (s *Session) endReading(err error) {
	wrong, ok := err.(*inputError)
	if !ok {
		s.fail(s.readErrorReason(err))
		return
	}
	s.fail(wrong.error)
	// Read and discard the peer's input until it has read our BYE: if a connection is
	// closed with unread input, some systems discard what was written. The connection
	// stays open here, because the writer might still use it.
	_ = s.conn.SetReadDeadline(time.Now().Add(s.opts.CloseTimeout))
	_, _ = io.Copy(io.Discard, s.conn)
}

var errNotMet = errors.New("the peer did not complete the handshake in time")

// readErrorReason returns the reason for ending the session if Read returned err.
func (s *Session) readErrorReason(err error) error {
	s.mu.Lock()
	broken := s.writing.broken
	s.mu.Unlock()
	var timeout interface{ Timeout() bool }
	late := errors.As(err, &timeout) && timeout.Timeout()
	if late && broken != nil {
		return broken
	}
	met := link.IsClosed(s.helloReceived)
	switch {
	case late && !met:
		return errNotMet
	case err == io.EOF && !met:
		return errors.New("the peer closed the connection during the handshake")
	}
	if err != io.EOF && !errors.Is(err, syscall.ECONNRESET) {
		return err
	}
	// A peer sends BYE before it closes the connection. Without BYE its process has died.
	if s.opts.Client {
		return errors.New("connection lost (the server may have crashed)")
	}
	return errors.New("connection lost (the client may have exited)")
}

// readsForFewLocked reports whether so few calls wait for input that the next frame is likely to
// arrive soon and alone. Large messages arrive in pieces, of which a reader that parks reads several
// at once.
func (s *Session) readsForFewLocked() bool {
	switch {
	case !s.reading.isMet, s.reading.room > 0:
		return false
	case s.acceptor != nil:
		return s.activeLocked() <= fewCalls
	case s.reading.caller != nil:
		return s.roles.Waiting == 0
	}
	return s.roles.Waiting > 0 && s.activeLocked() <= fewCalls
}

// Before a goroutine that waits for the peer parks, it spins: it polls the connection for a short
// time. A peer on another processor often answers within microseconds, and then neither side needs
// a wake-up.

// spinning counts the goroutines of this process that spin. At most GOMAXPROCS-1 of them, but at
// least one, may spin at a time, so that others can run.
var spinning atomic.Int32

func startSpinning() bool {
	if spinning.Add(1) <= max(int32(runtime.GOMAXPROCS(0))-1, 1) {
		return true
	}
	spinning.Add(-1)
	return false
}

// spinLocked polls the connection for up to maxSpin, or until the caller is woken, and handles what it
// reads. It reports whether there was input. mu is released in between.
func (s *Session) spinLocked(ctx context.Context, asCaller bool, begun time.Time) (got bool, err error) {
	s.mu.Unlock()
	now := begun
	for i := 1; ; i++ {
		n, err := s.raw.TryRead(s.readSpace())
		if n > 0 || err != nil {
			spinning.Add(-1)
			s.reading.spinBudget.spun(true)
			return true, s.handleRead(n, err, now)
		}
		if asCaller && (s.roles.MustStop() || wait.Err(ctx) != nil) {
			break
		}
		if now = time.Now(); now.Sub(begun) > maxSpin {
			s.reading.spinBudget.spun(false)
			break
		}
		if !asCaller || i%8 == 0 { // let handlers that the read loop has just started run
			runtime.Gosched()
		}
		if onlyCPU { // a local peer needs this processor to answer
			yield()
		}
	}
	spinning.Add(-1)
	s.mu.Lock()
	return false, nil
}

// onlyCPU is true if this process has a single processor.
var onlyCPU = runtime.NumCPU() == 1

// spinBudget decides whether a goroutine spins before it parks. Spinning is wasted if the peer
// takes longer than a spin, or needs the processor of the spinning goroutine.
//
// A successful spin earns budget. A failed one costs several times as much, because it lasts longer
// than most successful ones, so a reader spins only as long as most spins succeed. Short waits of a
// parked goroutine earn a little, so that spinning is tried again when it may pay off.
//
// After a pause the reader parks: the peer has parked too, and wakes up sooner if it can have the
// reader's processor.
type spinBudget struct {
	earned int
	readAt time.Time // of the last read that returned data
}

const (
	// maxSpin is several times as long as a wake-up, so that readers still spin while the peer's
	// handler works for as long.
	maxSpin = 200 * time.Microsecond

	spinGain  = 16 // earned by a successful spin, and needed for a spin
	spinCost  = 4 * spinGain
	maxEarned = 64 * spinGain
)

func (p *spinBudget) allows(now time.Time) bool {
	return p.earned >= spinGain && now.Sub(p.readAt) < maxSpin
}

// spun records whether a spin was successful.
func (p *spinBudget) spun(ok bool) {
	if ok {
		p.earned = min(p.earned+spinGain, maxEarned)
	} else {
		p.earned = max(p.earned-spinCost, 0)
	}
}

// parked records how long a goroutine that did not spin was parked.
func (p *spinBudget) parked(d time.Duration) {
	if d < maxSpin {
		p.earned = min(p.earned+1, maxEarned)
	}
}

// silentCalls counts the open calls that have received nothing for a long time, such as streams
// that wait for an event. Readers leave them out when they decide whether to spin.
//
// Guarded by the session's mu.
type silentCalls struct {
	reads uint64 // reads that returned data
	at    uint64 // the value of reads at the last count
	calls int    // silent calls at the last count
}

// silentAfter returns how many reads without data make a call silent. The session counts silent
// calls once every silentAfter reads. The result is at least the number of calls, so counting them
// all costs each read at most one call.
func silentAfter(calls int) uint64 { return max(256, uint64(calls)) }

// activeLocked returns the number of open calls that are not silent.
func (s *Session) activeLocked() int {
	n := len(s.streams)
	if n <= fewCalls {
		return n
	}
	q, after := &s.silent, silentAfter(n)
	if q.reads-q.at >= after {
		q.at, q.calls = q.reads, 0
		for _, st := range s.streams {
			if q.reads-st.heard >= after {
				q.calls++
			}
		}
	}
	return max(n-q.calls, 0)
}
