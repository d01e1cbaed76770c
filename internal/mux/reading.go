package mux

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/nearcall/nearcall/internal/wait"
	"github.com/nearcall/nearcall/internal/wire"
)

// reading is who reads the connection, and what was read.
//
// One goroutine reads at a time: a caller that waits, who leads and reads for
// all, or the resident, a goroutine of the session. A caller may lead over a
// bare socket, where nobody else waits: what it reads is then its own reply,
// and nobody had to be woken for it. On the callee's side, in a crowd, and over
// other connections the resident reads. While calls come one by one nobody
// reads between them; after a few idle milliseconds the resident does.
//
// Invariants, under mu:
//   - occupied says that somebody reads, or was woken to. Whoever is about to
//     wait for the peer leads, or wakes the resident, where nobody is. So
//     nobody waits while nobody reads.
//   - A leader leaves with its place taken by the resident where others wait or
//     something went wrong, and the timer set otherwise.
//   - A leader that is woken is not sleeping at its spot. called is set instead
//     and, while it is parked in Read, the read is cut short by a deadline in
//     the past. The leader takes the deadline back before it leaves, so that it
//     hits no reader after it.
type reading struct {
	raw Prompt // nil for connections that are not, such as TLS

	// Of whoever reads.
	late       []lateCall // what the acceptor is told of when all is taken in
	dec        wire.Decoder
	parts      parts   // of the block that the next frame begins with
	in         *buffer // begins with what was not taken in; nil for nothing
	room       int     // the size of the next buffer
	begun      bool    // the peer's line was seen
	isMet      bool    // its HELLO has come; written under mu
	spinBudget spinBudget

	// Guarded by mu.
	occupied    bool
	leader      *wait.Cond // of the caller that leads; nil where none does
	parked      bool       // the leader is in Read
	leaderDone  bool       // the leader's context has ended
	interrupted bool       // the leader's Read has a deadline in the past
	term        uint64     // counts leaders
	waiting     int        // how many sleep who wait for the peer, and were not woken
	accepting   *stream    // of which the acceptor is being told
	crowd       int        // falls with each read that few waited for; where it is not 0 the resident stays
	resident    wait.Cond
	readErr     error       // what a leader met, for the resident
	idle        *time.Timer // wakes the resident; nil before a caller has led
	idleSet     bool
	idleTerm    uint64 // when it was set

	called atomic.Bool // the leader was woken; written under mu
}

const (
	readBuffer = 16 << 10  // what a connection mostly reads into, in bytes
	maxRead    = 256 << 10 // and what it does where that is always full

	// crowdLasts is how many reads the resident stays for after several have
	// waited at a time.
	crowdLasts = 64

	// fewCalls is up to how many calls a reader tries for. What is sent for more
	// comes in batches, and a reader that parks meanwhile has it in one go.
	fewCalls = 16

	// idleTime is how long nobody reads while nobody waits. What comes without
	// being waited for, such as a ping, waits so long.
	idleTime = 5 * time.Millisecond
)

// await waits until somebody wakes spot, where st waits for the peer, or until
// ctx is done, whose error it returns. Whoever wakes spot has something changed
// that st waits for, or nothing: st looks again. mu is held, and released
// meanwhile.
func (s *Session) await(ctx context.Context, st *stream, spot *wait.Cond) error {
	if !s.occupied && s.raw != nil && st.caller && st.waiter == nil && s.crowd == 0 && s.waiting == 0 && s.ended == nil && s.broken == nil {
		return s.lead(ctx, spot)
	}
	return s.sleep(ctx, st, spot)
}

// sleep is await for those who do not lead.
func (s *Session) sleep(ctx context.Context, st *stream, spot *wait.Cond) error {
	if !s.occupied {
		s.wakeResident()
	}
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

// wake wakes whoever waits at spot. mu is held.
func (s *Session) wake(spot *wait.Cond, after *callbacks) {
	if s.leader != spot {
		if p := spot.Wake(); p != nil {
			s.waiting--
			after.unpark(p)
		}
		return
	}
	s.called.Store(true)
	s.interruptLeader()
}

// interruptLeader makes a leader that is parked return from Read. mu is held.
func (s *Session) interruptLeader() {
	if s.parked && !s.interrupted {
		s.interrupted = true
		_ = s.conn.SetReadDeadline(longAgo)
	}
}

var longAgo = time.Unix(1, 0)

// wakeResident makes the resident read from now on. mu is held, and nobody reads.
func (s *Session) wakeResident() {
	s.occupied = true
	wait.Unpark(s.resident.Wake())
}

// lead reads for all until spot is woken or ctx is done. mu is held, and
// released meanwhile.
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

// onLeaderDone makes the leader look at its context, which is done, unless it has
// left before.
func (s *Session) onLeaderDone(term uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leader != nil && s.term == term {
		s.leaderDone = true
		s.interruptLeader()
	}
}

// startReadIdle makes the resident read in a while, unless somebody else does. mu is
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
	case s.term != s.idleTerm: // somebody has led meanwhile
		s.startReadIdle()
	default:
		s.wakeResident()
	}
}

// readLoop is the resident. It is the first to read, and the last.
func (s *Session) readLoop() {
	s.mu.Lock()
	if s.broken == nil {
		_ = s.conn.SetReadDeadline(time.Now().Add(s.opts.Handshake))
	}
	s.mu.Unlock()
	s.in = newBuffer(max(readBuffer, len(s.opts.First)))
	s.in.b = append(s.in.b, s.opts.First...)
	s.opts.First = nil
	err := s.handleInput()
	s.mu.Lock()
	s.flushQueued()
	for err == nil {
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
	s.mu.Unlock()
	s.parts.drop()
	s.endReading(err)
	s.in.free()
	s.in = nil
}

// residentRetires reports whether callers may read for themselves. mu is held.
func (s *Session) residentRetires() bool {
	if s.raw == nil || !s.opts.Client || !s.isMet || s.waiting > 0 || s.broken != nil || s.ended != nil {
		return false
	}
	if s.crowd > 0 {
		s.crowd--
		return false
	}
	return true
}

// receive waits for what comes next, and takes it in. It returns without when
// the leader is woken. mu is held, and released meanwhile.
func (s *Session) receive(ctx context.Context) error {
	if s.waiting > 1 {
		s.crowd = crowdLasts
	}
	leads := s.leader != nil
	parks := false // without trying, though it might
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
	if s.in != nil && len(s.in.b) > 0 {
		runtime.Gosched() // the peer is just writing: more comes in one go then
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

// readSpace returns where to read into.
func (s *Session) readSpace() []byte {
	if s.in == nil {
		s.in = newBuffer(max(s.room, readBuffer))
	}
	return s.in.b[len(s.in.b):cap(s.in.b)]
}

// handleRead takes in what was read at about now. It returns with mu held.
func (s *Session) handleRead(n int, err error, now time.Time) error {
	if n > 0 {
		s.in.b = s.in.b[:len(s.in.b)+n]
		if wrong := s.handleInput(); wrong != nil {
			err = wrong
		}
	}
	s.mu.Lock()
	if n > 0 {
		s.keepalive.heard, s.keepalive.heardAt = true, now
		s.quiet.reads++
	}
	s.flushQueued()
	return err
}

// flushQueued writes what came to be owed to the peer, or can be written now that
// there is credit. mu is held, and released meanwhile.
func (s *Session) flushQueued() {
	if s.hasQueued() {
		s.flush(false)
		s.mu.Lock()
	}
}

// resetReadDeadline sets the deadline for what is read next. mu is held.
func (s *Session) resetReadDeadline() {
	var due time.Time
	if s.broken != nil {
		due = time.Now().Add(lastWords)
	}
	_ = s.conn.SetReadDeadline(due)
}

// readsForFew reports whether there are no more than a few calls to read for, so that
// the next that arrives comes soon, and alone. mu is held.
func (s *Session) readsForFew() bool {
	switch {
	case !s.isMet:
		return false
	case !s.opts.Client:
		return s.active() <= fewCalls
	case s.leader != nil:
		return s.waiting == 0
	}
	return s.waiting > 0 && s.active() <= fewCalls
}

// trying counts the readers of this process that try. More than there are
// processors to spare would keep others from running.
var spinning atomic.Int32

func startSpinning() bool {
	if spinning.Add(1) <= max(int32(runtime.GOMAXPROCS(0))-1, 1) {
		return true
	}
	spinning.Add(-1)
	return false
}

// spin reads without waiting, for a while and no longer than a leader wants, and
// takes in what came. It reports whether something did. mu is held, and released
// meanwhile.
func (s *Session) spin(ctx context.Context, leads bool) (got bool, err error) {
	s.mu.Unlock()
	begun := time.Now()
	now := begun
	for i := 1; ; i++ {
		n, err := s.raw.TryRead(s.readSpace())
		if n > 0 || err != nil {
			spinning.Add(-1)
			s.spinBudget.spun(true)
			return true, s.handleRead(n, err, now)
		}
		if leads && (s.called.Load() || wait.Err(ctx) != nil) {
			break
		}
		if now = time.Now(); now.Sub(begun) > maxSpin {
			s.spinBudget.spun(false)
			break
		}
		if !leads || i%8 == 0 { // what the resident has dispatched is to run now
			runtime.Gosched()
		}
		if onlyCPU { // a peer on this machine has no other either
			yield()
		}
	}
	spinning.Add(-1)
	s.mu.Lock()
	return false, nil
}

// onlyCPU says that this process may use one processor alone.
var onlyCPU = runtime.NumCPU() == 1

// spinBudget is whether a reader tries before it parks. A peer that answers in
// time does so on another processor, and neither side then pays for waking the
// other. Where that does not come true, because the peer takes long or needs
// this very processor, it is given up. What was waited for in vain is paid with
// what was gained before; short waits of a parked reader earn a little, so that
// it is tried again where it may pay.
type spinBudget struct{ earned int }

const (
	maxSpin = 50 * time.Microsecond

	spinCost  = 16 // what a try costs in vain, and brings otherwise
	maxEarned = 64 * spinCost

	// shortWait is the wait of a parked reader that trying might have spared.
	shortWait = 2 * maxSpin
)

func (p *spinBudget) allows() bool { return p.earned >= spinCost }

// spun says whether something came in time.
func (p *spinBudget) spun(in bool) {
	if in {
		p.earned = min(p.earned+spinCost, maxEarned)
	} else {
		p.earned -= spinCost
	}
}

// parked says for how long the reader did without trying.
func (p *spinBudget) parked(d time.Duration) {
	if d < shortWait {
		p.earned = min(p.earned+1, maxEarned)
	}
}
