package mux

import (
	"context"
	"errors"
	"os"
	"runtime"
	"runtime/pprof"
	"sync/atomic"
	"time"

	"github.com/nearcall/nearcall/internal/wait"
	"github.com/nearcall/nearcall/internal/wire"
)

// reading is the state of the goroutine that reads the connection, and of the choice
// which one reads.
//
// One goroutine reads at a time. It is either the leader, a caller that waits for the
// peer and reads for all calls, or the resident, a goroutine of the session. A caller
// leads only over a bare socket and only if no other caller waits: what it reads is
// then its own reply, and no goroutine has to be woken for it. On a side that takes
// calls, with several concurrent callers, and over other connections, the resident reads.
// Between sequential calls no goroutine reads; after idleTime without a call the
// resident takes over.
//
// Invariants, under mu:
//   - occupied means that a goroutine reads or was woken to read. A goroutine that is
//     about to wait for the peer while occupied is false either leads or wakes the
//     resident. So no goroutine waits while none reads. See also lending.
//   - A leader that stops leading wakes the resident if other goroutines wait or if
//     there was an error. Otherwise it starts the idle timer.
//   - A leader is not parked on its Cond, so wake sets called and, if the leader is parked
//     in Read, interrupts the Read with a deadline in the past. The leader resets the
//     deadline before it stops leading, so that the next reader is not interrupted.
type reading struct {
	raw Prompt // nil if the connection is more than a bare socket, such as TLS

	// Owned by the reading goroutine.
	late       []lateCall // calls to offer to the acceptor after all input was handled
	dec        wire.Decoder
	parts      parts   // of the block that the next frame begins with
	in         *buffer // begins with input not handled yet; may be nil if there is none
	room       int     // capacity of the next buffer, if above readBuffer
	begun      bool    // the peer's first line was read
	isMet      bool    // the peer's HELLO was read; written under mu
	opened     uint64  // the last of this side's calls that is known to have been opened
	spinBudget spinBudget

	// Guarded by mu.
	occupied    bool
	leader      *wait.Cond // the Cond of the caller that leads; nil if none does
	parked      bool       // the leader is in Read
	leaderDone  bool       // the leader's context has ended
	interrupted bool       // the leader's Read was given a deadline in the past
	term        uint64     // number of leaders so far
	waiting     int        // goroutines parked until the peer sends something, and not woken yet
	accepting   *stream    // the stream that is being offered to the acceptor
	crowd       int        // reads for which the resident stays, see crowdLasts
	resident    wait.Cond
	readErr     error       // a leader's read error, for the resident
	idle        *time.Timer // wakes the resident; nil before a caller has led
	idleSet     bool
	idleTerm    uint64 // the term when it was set

	called atomic.Bool // the leader was woken; written under mu
}

const (
	readBuffer = 16 << 10  // usual size of the read buffer, in bytes
	maxRead    = 256 << 10 // its largest size, if reads keep filling it

	// crowdLasts is for how many reads the resident stays after several goroutines have
	// waited at the same time.
	crowdLasts = 64

	// fewCalls is the number of active calls up to which a reader spins. With more
	// calls, frames arrive in batches, and a reader that parks reads a batch at once.
	fewCalls = 16

	// idleTime is how long no goroutine reads after the last call. Frames that no call
	// waits for, such as PINGs, are delayed by up to this time.
	idleTime = 5 * time.Millisecond
)

// await waits until spot is woken or ctx is done, and returns ctx's error in that case.
// Wake-ups may be spurious, so the caller checks its condition again. spot belongs to
// st. Called with mu held; mu is released while it waits.
func (s *Session) await(ctx context.Context, st *stream, spot *wait.Cond) error {
	if !s.occupied && s.raw != nil && st.caller && st.waiter == nil && s.crowd == 0 && s.waiting == 0 && s.ended == nil && s.broken == nil {
		return s.lead(ctx, spot)
	}
	return s.sleep(ctx, st, spot)
}

// sleep is await without leading.
func (s *Session) sleep(ctx context.Context, st *stream, spot *wait.Cond) error {
	s.needReader()
	w := st.waiter
	if w == nil {
		w = &s.parkers
	}
	s.waiting++
	if ctx.Done() == nil {
		spot.Wait(&s.mu, w)
		return nil
	}
	err := spot.WaitContext(ctx, &s.mu, w)
	if err != nil {
		s.waiting--
	}
	return err
}

// wake wakes the goroutine that waits for the peer at spot, if any, whether it leads or is
// parked. It returns the Parker of one that is parked, for the caller to unpark. Nothing else
// wakes goroutines that wait in await, sleep or admit: they might lead. mu is held.
func (s *Session) wake(spot *wait.Cond) wait.Parker {
	if s.leader == spot {
		s.called.Store(true)
		s.interruptLeader()
		return nil
	}
	p := spot.Wake()
	if p != nil {
		s.waiting--
	}
	return p
}

// interruptLeader interrupts the Read of a parked leader. mu is held.
func (s *Session) interruptLeader() {
	if s.parked && !s.interrupted {
		s.interrupted = true
		_ = s.conn.SetReadDeadline(longAgo)
	}
}

var longAgo = time.Unix(1, 0)

// wakeResident wakes the resident to read. mu is held, and no goroutine reads.
func (s *Session) wakeResident() {
	s.occupied = true
	wait.Unpark(s.resident.Wake())
}

// lead reads for all calls until spot is woken or ctx is done. Called with mu held; mu
// is released while it reads.
func (s *Session) lead(ctx context.Context, spot *wait.Cond) (err error) {
	s.occupied, s.leader = true, spot
	s.term++
	s.called.Store(false)
	s.leaderDone = false
	for !s.called.Load() && s.readErr == nil {
		if err = wait.Err(ctx); err == nil && s.leaderDone {
			err = wait.DoneErr(ctx)
		}
		if err != nil {
			break
		}
		s.readErr = s.receive(ctx)
	}
	s.leader = nil
	switch {
	case s.waiting > 0:
		s.crowd = crowdLasts
		s.wakeResident()
	case s.readErr != nil, s.ended != nil, s.broken != nil:
		s.wakeResident()
	default:
		s.occupied = false
		s.startReadIdle()
	}
	return err
}

// onLeaderDone tells the leader of the given term that its context is done. It does
// nothing if that leader has left.
func (s *Session) onLeaderDone(term uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leader != nil && s.term == term {
		s.leaderDone = true
		s.interruptLeader()
	}
}

// startReadIdle starts the timer that wakes the resident, unless it is running. mu is
// held.
func (s *Session) startReadIdle() {
	switch {
	case s.idleSet:
		return
	case s.idle == nil:
		s.idle = time.AfterFunc(idleTime, s.onReadIdle)
	default:
		s.idle.Reset(idleTime)
	}
	s.idleSet, s.idleTerm = true, s.term
}

func (s *Session) stopReadIdle() {
	if s.idle != nil {
		s.idle.Stop()
	}
}

func (s *Session) onReadIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idleSet = false
	switch {
	case s.occupied:
	case s.term != s.idleTerm: // another caller has led since
		s.startReadIdle()
	default:
		s.wakeResident()
	}
}

// readLoop is the resident. It is the first goroutine to read, and the last.
func (s *Session) readLoop() {
	s.mu.Lock()
	if s.broken == nil {
		_ = s.conn.SetReadDeadline(time.Now().Add(s.opts.Handshake))
	}
	s.mu.Unlock()
	s.in = newBuffer(max(readBuffer, len(s.opts.First)))
	s.in.B = append(s.in.B, s.opts.First...)
	s.opts.First = nil
	err := s.handleInput()
	s.mu.Lock()
	s.flushQueued()
	s.mu.Unlock()
	s.readOn(err)
}

// readOn is the rest of the resident's work: err is what its last read ended with. If the
// resident lends itself to a handler that does not return soon, another goroutine takes its
// place.
func (s *Session) readOn(err error) {
	pprof.SetGoroutineLabels(context.Background()) // not its creator's: it may run handlers
	s.mu.Lock()
	for err == nil {
		if len(s.lent) > 0 && !s.runLent() {
			return
		}
		if s.residentRetires() {
			s.occupied = false
			s.startReadIdle()
			for !s.occupied {
				s.resident.Wait(&s.mu, nil)
			}
			if err = s.readErr; err != nil {
				break
			}
		}
		err = s.receive(context.Background())
	}
	for _, c := range s.lent[s.lentRun:] {
		go c.run.Run()
	}
	s.lent = nil
	s.mu.Unlock()
	s.parts.drop()
	s.endReading(err)
	s.in.Free()
	s.in = nil
	s.loops.Done()
}

// residentRetires reports whether the resident can leave reading to callers. mu is
// held.
func (s *Session) residentRetires() bool {
	if s.raw == nil || s.acceptor != nil || !s.isMet || s.waiting > 0 || s.broken != nil || s.ended != nil {
		return false
	}
	if s.crowd > 0 {
		s.crowd--
		return false
	}
	return true
}

// receive waits for input and handles it. It returns early if the leader is woken.
// Called with mu held; mu is released in between.
func (s *Session) receive(ctx context.Context) error {
	if s.waiting > 1 {
		s.crowd = crowdLasts
	}
	leads := s.leader != nil
	parks := false // it parks because the spin budget is spent
	if s.raw != nil && !s.opts.NoSpin && s.readsForFew() {
		if parks = !s.spinBudget.allows(); !parks && startSpinning() {
			if got, err := s.spin(ctx, leads); got || err != nil {
				return err
			}
		}
	}
	if leads {
		if s.called.Load() || wait.Err(ctx) != nil {
			return nil
		}
		s.parked = true
	}
	term := s.term
	s.mu.Unlock()
	var stop func() bool
	if ctx.Done() != nil {
		stop = wait.AfterFunc(ctx, func() { s.onLeaderDone(term) })
	}
	if s.in != nil && len(s.in.B) > 0 {
		runtime.Gosched() // the peer is in the middle of a write: let it finish, and read more at once
	}
	in := s.readSpace()
	var begun time.Time
	if parks {
		begun = time.Now()
	}
	n, err := s.conn.Read(in)
	if parks && n > 0 {
		s.spinBudget.parked(time.Since(begun))
	}
	if stop != nil {
		stop()
	}
	if leads {
		s.mu.Lock()
		s.parked = false
		if s.interrupted {
			s.interrupted = false
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
	if s.in == nil {
		s.in = newBuffer(max(s.room, readBuffer))
	}
	return s.in.B[len(s.in.B):cap(s.in.B)]
}

// handleRead handles n bytes that were read at about now. Called without mu; it returns
// with mu held.
func (s *Session) handleRead(n int, err error, now time.Time) error {
	if n > 0 {
		s.in.B = s.in.B[:len(s.in.B)+n]
		if wrong := s.handleInput(); wrong != nil {
			err = wrong
		}
	}
	s.mu.Lock()
	if n > 0 {
		s.keepalive.heard, s.keepalive.heardAt = true, now
		s.quiet.reads++
	}
	if len(s.lent) == 0 {
		s.flushQueued()
	}
	return err
}

// flushQueued writes what is queued, such as control frames and messages for which
// credit has arrived. Called with mu held; mu is released in between.
func (s *Session) flushQueued() {
	if s.hasQueued() {
		s.flush(false)
		s.mu.Lock()
	}
}

// resetReadDeadline sets the deadline for the next reads: none, or lastWords from now
// after a write error. mu is held.
func (s *Session) resetReadDeadline() {
	var due time.Time
	if s.broken != nil {
		due = time.Now().Add(lastWords)
	}
	_ = s.conn.SetReadDeadline(due)
}

// readsForFew reports whether so few calls wait for input that the next frame is likely
// to arrive soon and alone. mu is held.
func (s *Session) readsForFew() bool {
	switch {
	case !s.isMet:
		return false
	case s.acceptor != nil:
		return s.active() <= fewCalls
	case s.leader != nil:
		return s.waiting == 0
	}
	return s.waiting > 0 && s.active() <= fewCalls
}
