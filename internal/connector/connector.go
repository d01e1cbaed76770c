// Package connector keeps a client connected to its target: it dials when somebody
// wants a session, backs off while that fails, has the states of gRPC's connectivity,
// and lets connections go that have been idle.
package connector

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
)

// A Connector keeps one session with a target: it dials when somebody wants a
// session, and again, with backoff, for as long as that fails. It has a goroutine only
// while it dials or backs off. Its methods may be called by any goroutine.
//
// A session that has ended is noticed by whoever looks next; nobody watches, unless
// there is an observer. Then the next is dialled at once, unless one after the other
// ended as soon as it had begun: see pace.
type Connector struct {
	Config

	Idle *Idleness // counts calls; nil unless IdleAfter was called

	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	ready atomic.Pointer[session] // the session of state Ready

	mu       sync.Mutex
	draining []*session // no longer ready, with calls that may still run
	state    connectivity.State
	failure  error                    // of the last attempt, in state TransientFailure
	changed  chan struct{}            // closed, and replaced, when state changes
	observer func(connectivity.State) // told of each state but Shutdown, with mu held; nil for none
	dialNow  chan struct{}            // has room for one; ends a backoff early
	stopDial func()                   // ends the attempts to connect; nil if there are none
	attempts uint64                   // how often attempts were begun
	pace     pace
}

// A Config says how to connect.
type Config struct {
	Dialer  link.Dialer
	Backoff backoff.Config
	Timeout time.Duration // of an attempt

	// OnSession is told of each new session before it is used.
	OnSession func(link.Session)
}

// A Failing dialer never connects, as for an option that cannot be honoured. All calls
// get Err, also those that wait for a connection.
type Failing struct{ Err error }

// Dial implements [link.Dialer].
func (f Failing) Dial(context.Context) (link.Session, error) { return nil, f.Err }

type session struct {
	link.Session
	dialled time.Time // when the attempt began that made it
}

// ErrClosing is what calls get after Close, and what a second Close returns:
// the very value that programs moved over from grpc-go compare with.
//
//lint:ignore SA1019 deprecated as something to compare with, which such programs do all the same
var ErrClosing = grpc.ErrClientConnClosing

// errIdle is why an idle session is closed. No call runs that could see it.
var errIdle = errors.New("the connection was idle")

// New returns a connector in state Idle.
func New(cfg Config) *Connector {
	c := &Connector{
		Config:  cfg,
		state:   connectivity.Idle,
		changed: make(chan struct{}),
		dialNow: make(chan struct{}, 1),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// Pick returns a session that calls can be made with. Without waitForReady it fails
// when the last attempt to connect has. Its errors are status errors.
func (c *Connector) Pick(ctx context.Context, waitForReady bool) (link.Session, error) {
	if s := c.ready.Load(); s != nil && !link.IsClosed(s.Done()) {
		return s.Session, nil
	}
	if d, ok := c.Dialer.(Failing); ok {
		return nil, status.Error(codes.Unavailable, d.Err.Error())
	}
	for {
		c.mu.Lock()
		c.noticeEnd()
		state, failure, changed := c.state, c.failure, c.changed
		if state == connectivity.Idle {
			c.startDialing()
			state, failure, changed = c.state, c.failure, c.changed
		}
		c.mu.Unlock()
		switch {
		case state == connectivity.Ready:
			if s := c.ready.Load(); s != nil {
				return s.Session, nil
			}
			continue
		case state == connectivity.Shutdown:
			return nil, ErrClosing
		case state == connectivity.TransientFailure && (!waitForReady || errors.Is(failure, link.ErrForeign)):
			// There is nothing to wait for where another server stands: the address
			// is wrong, and only its text says so.
			return nil, status.Errorf(codes.Unavailable, "connection error: desc = %q", failure)
		}
		if wait.Closed(ctx, changed) != nil {
			return nil, c.notReady(ctx)
		}
	}
}

// notReady is what a call gets whose context ended before a session was ready.
func (c *Connector) notReady(ctx context.Context) error {
	c.mu.Lock()
	failure := c.failure
	c.mu.Unlock()
	st := status.FromContextError(wait.DoneErr(ctx))
	if failure != nil {
		return status.Errorf(st.Code(), "%s while waiting for connections to become ready; last error: %v", st.Message(), failure)
	}
	return status.Errorf(st.Code(), "%s while waiting for connections to become ready", st.Message())
}

// hasEnded reports whether the session has ended and its calls with it.
func (s *session) hasEnded() bool { return link.IsClosed(s.Ended()) }

// noticeEnd changes the state if the session has ended. mu is held.
func (c *Connector) noticeEnd() {
	if s := c.ready.Load(); s != nil && link.IsClosed(s.Done()) {
		c.pace.ended(s, c.Backoff)
		c.retire(s)
		if c.state == connectivity.Ready {
			c.setState(connectivity.Idle)
		}
	}
}

// retire lets no further call have the session, which is drained. mu is held.
func (c *Connector) retire(s *session) {
	c.ready.Store(nil)
	c.draining = append(slices.DeleteFunc(c.draining, (*session).hasEnded), s)
}

// setState changes the state. mu is held.
func (c *Connector) setState(s connectivity.State) {
	if c.state == s {
		return
	}
	c.state = s
	close(c.changed)
	c.changed = make(chan struct{})
	if c.observer != nil && s != connectivity.Shutdown {
		c.observer(s)
	}
}

// Observe tells f of the state, now and at each change, with mu held, until the
// connector is closed, of which it does not tell. There is one observer at most.
func (c *Connector) Observe(f func(connectivity.State)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == connectivity.Shutdown {
		return
	}
	c.noticeEnd()
	c.observer = f
	f(c.state)
	go c.noticeEnds()
}

// noticeEnds notices the end of each session until the connector is closed.
func (c *Connector) noticeEnds() {
	for s := c.State(); s != connectivity.Shutdown; s = c.State() {
		c.WaitForStateChange(context.Background(), s)
	}
}

// startDialing begins the attempts to connect, after the backoff if one is due. mu is
// held and the state is Idle.
func (c *Connector) startDialing() {
	delay := time.Until(c.pace.due)
	if delay > 0 {
		c.failure = c.pace.failure()
		c.setState(connectivity.TransientFailure)
	} else {
		c.setState(connectivity.Connecting)
	}
	c.startIdleTimer()
	var ctx context.Context
	ctx, c.stopDial = context.WithCancel(c.ctx)
	c.attempts++
	go c.dialUntilReady(ctx, c.attempts, delay)
}

// dialUntilReady makes attempts until there is a session, or all is done: the connector
// is closed or became idle. number is that of these attempts. The first comes after
// delay.
func (c *Connector) dialUntilReady(all context.Context, number uint64, delay time.Duration) {
	if delay > 0 {
		c.backOff(all, delay, nil)
	}
	for all.Err() == nil {
		worthwhile, stop := awaitTarget(c.Dialer)
		begun := time.Now()
		ctx, cancel := context.WithTimeout(all, c.Timeout)
		s, err := c.Dialer.Dial(ctx)
		cancel()
		done, next := c.finishDial(number, s, begun, err)
		if done {
			stop()
			return
		}
		c.backOff(all, time.Until(next), worthwhile)
		stop()
	}
}

// backOff waits for d, or until all is done, another attempt is worth while, or
// ResetBackoff was called.
func (c *Connector) backOff(all context.Context, d time.Duration, worthwhile <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-worthwhile:
	case <-all.Done():
	case <-c.dialNow:
	}
}

// awaitTarget returns a channel that is closed when another attempt is worth while; nil
// if the dialer cannot tell. stop ends the wait.
func awaitTarget(d link.Dialer) (worthwhile <-chan struct{}, stop func()) {
	if d, ok := d.(interface {
		Await() (<-chan struct{}, func())
	}); ok {
		return d.Await()
	}
	return nil, func() {}
}

// finishDial takes over the result of an attempt. It returns when the next is due,
// unless none is needed.
func (c *Connector) finishDial(number uint64, s link.Session, begun time.Time, err error) (done bool, next time.Time) {
	if err == nil {
		c.OnSession(s)
	}
	c.mu.Lock()
	if c.stopDial == nil || c.attempts != number { // closed or idle meanwhile
		c.mu.Unlock()
		if err == nil {
			_ = s.Close(ErrClosing)
		}
		return true, next
	}
	defer c.mu.Unlock()
	if err != nil {
		c.failure = err
		c.setState(connectivity.TransientFailure)
		return false, c.pace.failed(begun, c.Backoff)
	}
	c.stopDial()
	c.stopDial = nil
	c.failure = nil
	c.ready.Store(&session{s, begun})
	c.setState(connectivity.Ready)
	return true, next
}

// Connect leaves state Idle without a call.
func (c *Connector) Connect() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noticeEnd()
	if c.state == connectivity.Idle {
		c.startDialing()
	}
}

// ResetBackoff makes the attempt at once that a backoff has put off.
func (c *Connector) ResetBackoff() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pace = pace{}
	if c.state != connectivity.TransientFailure {
		return
	}
	select {
	case c.dialNow <- struct{}{}:
	default:
	}
}

// State returns the state.
func (c *Connector) State() connectivity.State {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noticeEnd()
	return c.state
}

// WaitForStateChange waits until the state is not s. It returns false if ctx is done
// before.
func (c *Connector) WaitForStateChange(ctx context.Context, s connectivity.State) bool {
	for {
		c.mu.Lock()
		c.noticeEnd()
		state, changed := c.state, c.changed
		var ended <-chan struct{}
		if r := c.ready.Load(); r != nil {
			ended = r.Done()
		}
		c.mu.Unlock()
		if state != s {
			return true
		}
		select {
		case <-changed:
		case <-ended:
		case <-ctx.Done():
			return false
		}
	}
}

// Close ends all sessions. A second Close returns [ErrClosing].
func (c *Connector) Close() error {
	c.mu.Lock()
	if c.state == connectivity.Shutdown {
		c.mu.Unlock()
		return ErrClosing
	}
	sessions := c.draining
	if s := c.ready.Swap(nil); s != nil {
		sessions = append(sessions, s)
	}
	c.draining, c.stopDial = nil, nil
	c.setState(connectivity.Shutdown)
	if c.Idle != nil && c.Idle.timer != nil {
		c.Idle.timer.Stop()
	}
	c.mu.Unlock()
	c.cancel()
	for _, s := range sessions {
		_ = s.Close(ErrClosing)
	}
	return nil
}
