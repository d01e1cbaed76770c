// Package wait is the one way to wait in nearcall: a handler for a message, a
// client for a reply, a sender for credit. Everything else builds on a token
// that one side parks for and another leaves.
//
// Who waits is not always a goroutine that may block. A task of an event loop
// is suspended instead, and a caller may have something to watch while it
// waits. Code that waits therefore never touches a channel of its own: it asks
// for a [Parker] and lets that decide how.
package wait

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
)

// A Parker holds at most one token. One goroutine or task parks at a time; any
// may unpark.
type Parker interface {
	// Park waits for the token and takes it, or returns ctx's error once ctx
	// is done. When both have happened either may be reported; a token that
	// was not taken stays.
	Park(ctx context.Context) error

	// Unpark leaves the token. It never blocks. A second token before the
	// first was taken is dropped.
	Unpark()
}

// A Waiter supplies the Parker of whoever is about to wait: of the running
// task where it is asked from one, else of a goroutine.
type Waiter interface {
	// Parker returns the Parker of whoever calls it, without a token.
	Parker() Parker

	// Release gives p back after the wait. It holds no token, and nobody
	// unparks it any more.
	Release(p Parker)
}

// Goroutine is the Parker of ordinary goroutines: it blocks.
type Goroutine struct {
	token chan struct{}
}

// NewGoroutine returns a Parker that blocks the goroutine that parks.
func NewGoroutine() *Goroutine {
	return &Goroutine{token: make(chan struct{}, 1)}
}

// Park implements [Parker].
func (g *Goroutine) Park(ctx context.Context) error {
	done := ctx.Done()
	if done == nil {
		<-g.token
		return nil
	}
	select {
	case <-g.token:
		return nil
	case <-done:
		return DoneErr(ctx)
	}
}

// Unpark implements [Parker].
func (g *Goroutine) Unpark() {
	select {
	case g.token <- struct{}{}:
	default:
	}
}

// A Cond is where at most one goroutine or task waits for a condition that a
// lock guards, as sync.Cond, but for any Parker. The zero value is ready.
//
// Invariant: asleep is written under the lock only. The waiter sets it before
// it releases the lock; Wake clears it and hands its caller the Parker to
// unpark, so each period of sleep gets exactly one token and none is left over
// when Wait returns.
type Cond struct {
	asleep Parker     // who sleeps here; nil when nobody does
	own    *Goroutine // kept between waits of goroutines
}

// Wait releases l, sleeps until somebody calls Wake and unparks what it
// returned, and takes l again. l must be held. As with sync.Cond the caller
// looks at its condition again afterwards. w may be nil, for goroutines.
func (s *Cond) Wait(l sync.Locker, w Waiter) {
	s.Sleep(l, w)
	l.Lock()
}

// WaitContext is Wait for as long as ctx lasts. It returns the context's error if
// nobody called Wake before.
func (s *Cond) WaitContext(ctx context.Context, l sync.Locker, w Waiter) error {
	p := s.parker(w)
	s.asleep = p
	l.Unlock()
	err := p.Park(ctx)
	l.Lock()
	switch {
	case err == nil:
	case s.asleep != nil:
		s.asleep = nil
	default: // somebody was faster, and the token is on its way
		l.Unlock()
		_ = p.Park(context.Background())
		l.Lock()
		err = nil
	}
	if w != nil {
		w.Release(p)
	}
	return err
}

// parker returns the Parker of whoever is about to wait.
func (s *Cond) parker(w Waiter) Parker {
	if w != nil {
		return w.Parker()
	}
	if s.own == nil {
		s.own = NewGoroutine()
	}
	return s.own
}

// Sleep is Wait for those who need l no more: it is not held when Sleep
// returns. What was written between Wake and Unpark can be read.
func (s *Cond) Sleep(l sync.Locker, w Waiter) {
	p := s.parker(w)
	s.asleep = p
	l.Unlock()
	_ = p.Park(context.Background()) // cannot be cancelled: whoever cancels wakes the spot
	if w != nil {
		w.Release(p)
	}
}

// Wake ends the sleep of whoever waits here and returns the Parker that the
// caller must Unpark, best after releasing the lock; nil when nobody waits.
// The lock must be held.
func (s *Cond) Wake() Parker {
	p := s.asleep
	s.asleep = nil
	return p
}

// Unpark unparks p unless it is nil. It takes what [Cond.Wake] returned.
func Unpark(p Parker) {
	if p != nil {
		p.Unpark()
	}
}

// A Handoffer is the Parker of a task that its waker can run at once.
type Handoffer interface {
	// Handoff is Unpark, and may run the task, and others that are ready, on the calling
	// goroutine until they wait again. The caller holds no lock, and has a message for
	// the task.
	Handoff()
}

// Handoff hands the calling goroutine to p if p is a [Handoffer], and otherwise unparks p.
// A nil p does nothing.
func Handoff(p Parker) {
	if h, ok := p.(Handoffer); ok {
		h.Handoff()
		return
	}
	Unpark(p)
}

// A Mutex is a lock that is held across waits: whoever finds it taken parks.
// The zero value is ready.
//
// Invariant: somebody queues only in state contended, which is set and left
// under mu. A lock that is given up while somebody queues stays held, and
// passes to the first in the queue together with its one token.
type Mutex struct {
	state atomic.Uint32
	mu    sync.Mutex
	queue []Parker
}

// The states of a Mutex.
const (
	free uint32 = iota
	held
	contended // held, and perhaps somebody queues
)

// TryLock takes the lock if nobody holds it.
func (m *Mutex) TryLock() bool { return m.state.CompareAndSwap(free, held) }

// Lock takes the lock, first come first served. w is who waits for it, nil for
// goroutines.
func (m *Mutex) Lock(w Waiter) {
	if m.TryLock() {
		return
	}
	var own Pool
	if w == nil {
		w = &own
	}
	m.mu.Lock()
	if m.state.Swap(contended) == free {
		m.mu.Unlock()
		return
	}
	p := w.Parker()
	m.queue = append(m.queue, p)
	m.mu.Unlock()
	_ = p.Park(context.Background())
	w.Release(p)
}

// Unlock gives the lock up.
func (m *Mutex) Unlock() {
	if m.state.CompareAndSwap(held, free) {
		return
	}
	m.mu.Lock()
	if len(m.queue) == 0 {
		m.state.Store(free)
		m.mu.Unlock()
		return
	}
	next := m.queue[0]
	m.queue = m.queue[1:]
	m.mu.Unlock()
	next.Unpark()
}

// A Pool keeps the Parkers of goroutines that wait briefly, such as callers of
// unary calls. Its owner is one connection, so that no Parker outlives what it
// was made for or crosses into another synctest bubble.
type Pool struct {
	pool sync.Pool
}

// Parker implements [Waiter].
func (p *Pool) Parker() Parker {
	if g, ok := p.pool.Get().(*Goroutine); ok {
		return g
	}
	return NewGoroutine()
}

// Release implements [Waiter].
func (p *Pool) Release(g Parker) { p.pool.Put(g) }

// Yield lets others run before the caller goes on. w is who would wait, nil
// for a goroutine.
func Yield(w Waiter) {
	if y, ok := w.(interface{ Yield() }); ok {
		y.Yield()
		return
	}
	runtime.Gosched()
}
