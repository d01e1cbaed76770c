// Package wait provides nearcall's waiting primitives. A handler that waits for
// a message, a client that waits for a reply and a sender that waits for credit
// all use them.
//
// Some waiters cannot block their goroutine: a task of an event loop is suspended instead, and
// other waiters work while they wait. So code that waits does not receive from a channel. It
// parks on a [Parker], which decides how to wait.
package wait

import (
	"context"
	"runtime"
	"sync"
)

// A Parker holds at most one token. One goroutine or task parks at a time; any
// may unpark.
type Parker interface {
	// Park waits for the token and takes it, or returns ctx's error once ctx is done. If there is
	// a token and ctx is done, Park may do either. A token that Park does not take stays.
	Park(ctx context.Context) error

	// Unpark leaves the token. It never blocks. If the last token was not
	// taken yet, the new one is dropped.
	Unpark()
}

// A Waiter supplies Parkers. A task gets its own Parker. An ordinary goroutine gets a Parker that
// blocks.
type Waiter interface {
	// Parker returns a Parker for the caller. It holds no token.
	Parker() Parker

	// Release returns p to the Waiter after the wait. p must hold no token,
	// and must not be unparked afterwards.
	Release(p Parker)
}

// Goroutine is the Parker of ordinary goroutines. Park blocks the goroutine.
type Goroutine chan struct{}

// NewGoroutine returns a Goroutine without a token.
func NewGoroutine() Goroutine { return make(Goroutine, 1) }

// Park implements [Parker].
func (g Goroutine) Park(ctx context.Context) error {
	done := ctx.Done()
	if done == nil {
		<-g
		return nil
	}
	select {
	case <-g:
		return nil
	case <-done:
		return DoneErr(ctx)
	}
}

// Unpark implements [Parker].
func (g Goroutine) Unpark() {
	select {
	case g <- struct{}{}:
	default:
	}
}

// A Cond is a condition variable like sync.Cond, for one waiter of any kind. At
// most one goroutine or task waits at a time. The zero value is ready to use.
//
// Invariant: the field asleep is written only under the lock. The waiter sets it before releasing
// the lock. Wake clears it and returns the Parker to unpark. So each sleep gets exactly one token,
// and none is left when Wait returns.
type Cond struct {
	asleep Parker    // the waiter's; nil if there is none
	own    Goroutine // reused for every wait with a nil Waiter
}

// Wait releases l, sleeps until another goroutine calls Wake and unparks the
// Parker it returned, and locks l again. l must be held. As with sync.Cond, the
// caller must check its condition again. w supplies the Parker; nil means a
// goroutine's.
func (s *Cond) Wait(l sync.Locker, w Waiter) {
	s.Sleep(l, w)
	l.Lock()
}

// WaitContext is like Wait, but stops waiting when ctx is done. In that case it returns ctx's
// error, or nil if Wake was called first.
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
	default: // Wake was called: take its token
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

// parker returns the Parker to wait with.
func (s *Cond) parker(w Waiter) Parker {
	if w != nil {
		return w.Parker()
	}
	if s.own == nil {
		s.own = NewGoroutine()
	}
	return s.own
}

// Sleep is like Wait, but does not lock l again. The caller sees everything that the waker wrote
// before Unpark, even after the waker had released l.
func (s *Cond) Sleep(l sync.Locker, w Waiter) {
	p := s.parker(w)
	s.asleep = p
	l.Unlock()
	_ = p.Park(context.Background()) // without a context: a cancellation must call Wake
	if w != nil {
		w.Release(p)
	}
}

// Wake ends the waiter's sleep and returns its Parker, which the caller must
// unpark, preferably after releasing the lock. It returns nil if there is no
// waiter. The lock must be held.
func (s *Cond) Wake() Parker {
	p := s.asleep
	s.asleep = nil
	return p
}

// Unpark unparks p, the result of [Cond.Wake]. A nil p does nothing.
func Unpark(p Parker) {
	if p != nil {
		p.Unpark()
	}
}

// A Handoffer is the Parker of a task that can run on the goroutine that wakes it.
type Handoffer interface {
	// Handoff is like Unpark, but may run the task, and others that are ready, on the calling
	// goroutine until they wait again. The caller must hold no lock. The caller calls Handoff when
	// it has a message for the task.
	Handoff()
}

// Handoff calls p.Handoff if p is a [Handoffer], and p.Unpark otherwise. A nil p does
// nothing.
func Handoff(p Parker) {
	if h, ok := p.(Handoffer); ok {
		h.Handoff()
		return
	}
	Unpark(p)
}

// An Abandoner is the Waiter of tasks that it may abandon: if the goroutine that must run a task
// has ended, no Park of the task returns, and its deferred calls never run.
//
// Invariant: if other goroutines need the lock, place or slot that a task has or waits for, the task
// calls OnAbandon before it parks. Any other end of a task, also by Goexit or a panic, makes its
// deferred calls.
type Abandoner interface {
	// OnAbandon makes the loop call d.Abandoned, without holding a lock, if it abandons the caller
	// before the caller calls stop. Calls of OnAbandon may be nested.
	OnAbandon(d Abandoned) (stop func())
}

// An Abandoned is a lock, place or slot that an abandoned task has or waits for.
type Abandoned interface {
	// Abandoned gives it back.
	Abandoned()
}

// OnAbandon calls w's OnAbandon if w is an [Abandoner].
func OnAbandon(w Waiter, d Abandoned) (stop func()) {
	if a, ok := w.(Abandoner); ok {
		return a.OnAbandon(d)
	}
	return NotAbandoned
}

// NotAbandoned is the result of OnAbandon for a caller that cannot be abandoned. It does nothing.
func NotAbandoned() {}

// A Mutex is a lock that may be held across waits: a waiter for it parks. The
// zero value is unlocked.
//
// Unlock passes the lock to the first waiter by giving it a token. For a task that is abandoned with
// this token, Abandoned passes the lock on. A task that parks while it holds the lock calls
// [OnAbandon] itself, if others wait for the lock.
type Mutex struct {
	mu    sync.Mutex
	held  bool
	queue []Parker // empty unless held
}

// TryLock takes the lock if it is free and reports whether it did.
func (m *Mutex) TryLock() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	took := !m.held
	m.held = true
	return took
}

// Lock takes the lock. Waiters get it in order of arrival. w supplies the Parker to wait with;
// nil means a goroutine's.
func (m *Mutex) Lock(w Waiter) {
	m.mu.Lock()
	if !m.held {
		m.held = true
		m.mu.Unlock()
		return
	}
	if w == nil {
		w = new(Pool)
	}
	p := w.Parker()
	m.queue = append(m.queue, p)
	m.mu.Unlock()
	stop := OnAbandon(w, m)
	_ = p.Park(context.Background())
	stop()
	w.Release(p)
}

// Abandoned implements [Abandoned], for a task that waits and has got the lock.
func (m *Mutex) Abandoned() { m.Unlock() }

// Unlock releases the lock, or passes it to the first waiter.
func (m *Mutex) Unlock() {
	m.mu.Lock()
	if len(m.queue) == 0 {
		m.held = false
		m.mu.Unlock()
		return
	}
	next := m.queue[0]
	m.queue = m.queue[1:]
	m.mu.Unlock()
	next.Unpark()
}

// A Pool is a Waiter that reuses the Parkers of goroutines, such as callers of
// unary calls. Each connection owns one, so that no Parker outlives its
// connection or is used in another synctest bubble.
type Pool struct {
	pool sync.Pool
}

// Parker implements [Waiter].
func (p *Pool) Parker() Parker {
	if g, ok := p.pool.Get().(Goroutine); ok {
		return g
	}
	return NewGoroutine()
}

// Release implements [Waiter].
func (p *Pool) Release(g Parker) { p.pool.Put(g) }

// Yield lets other goroutines, or other tasks of the loop w, run first. A nil w means
// that the caller is a goroutine.
func Yield(w Waiter) {
	if y, ok := w.(interface{ Yield() }); ok {
		y.Yield()
		return
	}
	runtime.Gosched()
}

// Contexts.
//
// The caller's context may have a type whose methods contradict one another. Calls treat such a
// context as package context and grpc-go do. It ends only when its Done channel is closed.
// After that, Err gives the reason. Deadline's time counts only if ok is true.
//
// A context whose Err is nil although Done is closed violates context.Context. Package
// context panics; here the context counts as cancelled. A nil Err must not make a call
// look successful.

// Err returns ctx's error if ctx has ended, and nil otherwise. It asks ctx.Err first
// because that is cheaper than Done. So it misses the end of a context with a nil Err: code
// that has seen Done closed uses [DoneErr].
func Err(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return ended(ctx, err)
	}
	return nil
}

// ended returns err, the result of ctx.Err, if ctx has really ended.
func ended(ctx context.Context, err error) error {
	if !isClosed(ctx.Done()) {
		return nil
	}
	return err
}

// DoneErr returns the error of ctx, whose Done channel must be closed. It is never nil.
func DoneErr(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return context.Canceled
}

// AfterFunc is like [context.AfterFunc], but also accepts a context that has ended with
// a nil Err.
func AfterFunc(ctx context.Context, f func()) (stop func() bool) {
	if isClosed(ctx.Done()) && ctx.Err() == nil {
		go f()
		return func() bool { return false }
	}
	return context.AfterFunc(ctx, f)
}

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}
