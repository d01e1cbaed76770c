// Package connector keeps a client connected to its target. It dials when a call needs a
// session, backs off while dialling fails, reports gRPC's connectivity states, and closes
// idle connections.
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
	"google.golang.org/grpc/grpclog"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/counters"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/wait"
)

// A Connector keeps one session with a target. It dials when a call needs a session, and
// retries with backoff while that fails. Its methods are safe for concurrent use.
//
// The Connector runs a goroutine only while it dials or backs off, for an observer, or after
// Persist. Without an observer or Persist, the Connector notices the end of a session only in the
// next method call. It then dials the next session at once, or after a backoff if several
// sessions in a row were brief: see redial.
type Connector struct {
	Config

	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	ready atomic.Pointer[session] // the session of state Ready

	mu        sync.Mutex
	draining  []*session // no longer ready, with calls that may still run
	state     connectivity.State
	failure   error         // the last attempt's; nil once connected
	changed   chan struct{} // closed and replaced when state changes
	observers map[*observer]struct{}
	dialNow   chan struct{} // capacity 1; ends a backoff early
	stopDial  func()        // ends the dial loop; nil if none runs
	attempts  uint64        // number of dial loops so far
	redial    redial
	connected bool // there was a session since the start, or since the last idle timeout
}

// A Config says how to connect.
type Config struct {
	Options *options.Client
	Name    string // the target, for the log; "" for no log
	Dialer  link.Dialer
	Backoff backoff.Config
	Closed  error     // of calls after Close; a status error, or nil for ErrClosing
	Idle    *Idleness // counts calls; nil if the connector never goes idle

	// OnSession is called with each new session before it is used.
	OnSession func(link.Session)
}

// A Failing dialer never connects, for example because an option cannot be honoured. All
// calls fail with Err, even those that wait for a connection.
type Failing struct{ Err error }

// Dial implements [link.Dialer].
func (f Failing) Dial(context.Context) (link.Session, error) { return nil, f.Err }

type session struct {
	link.Session
	dialled time.Time // start of the attempt that opened it
}

// ErrClosing is the error of calls after Close, and of a second Close. It is grpc-go's
// value because programs moved over from grpc-go compare with it.
//
//lint:ignore SA1019 comparing with it is deprecated, but such programs do
var ErrClosing = grpc.ErrClientConnClosing

// errIdle is the reason for closing an idle session. No call runs on an idle session, so no call
// sees this error.
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

// Current returns the session of state Ready, or nil if there is none.
func (c *Connector) Current() link.Session {
	if s := c.ready.Load(); s != nil {
		return s.Session
	}
	return nil
}

// Pick returns a session for a call, and dials or waits for one if needed. Without
// waitForReady it fails in state TransientFailure. Its errors are status errors.
func (c *Connector) Pick(ctx context.Context, waitForReady bool) (link.Session, error) {
	if s := c.ready.Load(); s != nil && !link.IsClosed(s.Done()) {
		return s.Session, nil
	}
	if d, ok := c.Dialer.(Failing); ok {
		return nil, status.Error(codes.Unavailable, d.Err.Error())
	}
	for {
		c.mu.Lock()
		c.noticeEndLocked()
		if c.state == connectivity.Idle {
			c.startDialingLocked()
		}
		state, failure, changed := c.state, c.failure, c.changed
		c.mu.Unlock()
		switch {
		case state == connectivity.Ready:
			if s := c.ready.Load(); s != nil {
				return s.Session, nil
			}
			continue
		case state == connectivity.Shutdown:
			if c.Closed != nil {
				return nil, c.Closed
			}
			return nil, ErrClosing
		case state == connectivity.TransientFailure && (!waitForReady || errors.Is(failure, link.ErrForeign)):
			// If the peer speaks another protocol, waiting does not help: the address
			// is wrong, and the error says so.
			return nil, status.Errorf(codes.Unavailable, "connection error: desc = %q", failure)
		}
		if wait.Closed(ctx, changed) != nil {
			return nil, c.notReady(ctx)
		}
	}
}

// notReady returns the error of a call whose context ended before a session was ready.
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

// hasEnded reports whether the session and all its calls have ended.
func (s *session) hasEnded() bool { return link.IsClosed(s.Ended()) }

// noticeEndLocked leaves state Ready if the session takes no more calls. mu is held.
func (c *Connector) noticeEndLocked() {
	if s := c.ready.Load(); s != nil && link.IsClosed(s.Done()) {
		c.redial.ended(s, c.Backoff)
		c.retireLocked(s)
		if c.state == connectivity.Ready {
			c.setStateLocked(connectivity.Idle)
		}
	}
}

// retireLocked gives no more calls to s, which is drained. mu is held.
func (c *Connector) retireLocked(s *session) {
	c.ready.Store(nil)
	c.draining = append(slices.DeleteFunc(c.draining, (*session).hasEnded), s)
}

// setStateLocked changes the state. mu is held.
func (c *Connector) setStateLocked(s connectivity.State) {
	if c.state == s {
		return
	}
	c.state = s
	c.logLocked(s)
	close(c.changed)
	c.changed = make(chan struct{})
	for o := range c.observers {
		o.see(s)
	}
}

var logger = grpclog.Component("nearcall")

// logLocked logs a change of the state. finishDial logs failed attempts as warnings, as in grpc-go; the
// backoff limits their rate. mu is held.
func (c *Connector) logLocked(s connectivity.State) {
	switch {
	case c.Name == "":
	case s == connectivity.TransientFailure:
		logger.Infof("connection to %s: %v: %q", c.Name, s, c.failure)
	case s == connectivity.Idle && c.redial.reason != nil:
		logger.Infof("connection to %s: %v: the last connection ended: %q", c.Name, s, c.redial.reason)
	default:
		logger.Infof("connection to %s: %v", c.Name, s)
	}
}

// An observer sees each state of a connector.
type observer struct{ see func(connectivity.State) }

// Observe calls f with the current state and with each later one, until stop is called. mu is held
// during the call, so f must not call the connector.
func (c *Connector) Observe(f func(connectivity.State)) (stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noticeEndLocked()
	if c.observers == nil {
		c.observers = make(map[*observer]struct{})
		go c.noticeEnds()
	}
	o := &observer{f}
	c.observers[o] = struct{}{}
	f(c.state)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.observers, o)
	}
}

// noticeEnds notices the end of each session even if no methods are called, until Close.
func (c *Connector) noticeEnds() {
	for s := c.GetState(); s != connectivity.Shutdown; s = c.GetState() {
		c.WaitForStateChange(context.Background(), s)
	}
}

// startDialingLocked starts the dial loop, which waits first if a backoff is due. mu is held
// and the state is Idle.
func (c *Connector) startDialingLocked() {
	delay := time.Until(c.redial.due)
	if delay > 0 {
		c.failure = c.redial.failure()
		c.setStateLocked(connectivity.TransientFailure)
	} else {
		c.setStateLocked(connectivity.Connecting)
	}
	c.startIdleTimerLocked()
	var ctx context.Context
	ctx, c.stopDial = context.WithCancel(c.ctx)
	c.attempts++
	go c.dialUntilReady(ctx, c.attempts, delay)
}

// dialUntilReady is the dial loop. It dials until it has a session, or until the context all is
// done, which the connector cancels when it is closed or becomes idle. The first attempt is made
// after the time delay. number identifies the loop.
func (c *Connector) dialUntilReady(all context.Context, number uint64, delay time.Duration) {
	if delay > 0 {
		c.backOff(all, delay, nil)
	}
	for all.Err() == nil {
		worthwhile, stop := awaitTarget(c.Dialer)
		begun := time.Now()
		ctx, cancel := context.WithTimeout(all, c.attemptTimeout())
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

// attemptTimeout returns how long the next attempt can take. As in grpc-go that is no less than the
// backoff after it.
func (c *Connector) attemptTimeout() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(c.Options.ConnectTimeout, interval(c.Backoff, c.redial.failures))
}

// backOff waits for d. It returns early if the context all is done, if worthwhile is closed, or if
// ResetConnectBackoff is called.
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

// awaitTarget returns a channel that the dialer closes once another attempt may succeed,
// or nil if the dialer cannot tell. stop releases the channel.
func awaitTarget(d link.Dialer) (worthwhile <-chan struct{}, stop func()) {
	if d, ok := d.(interface {
		Await() (<-chan struct{}, func())
	}); ok {
		return d.Await()
	}
	return nil, func() {}
}

// finishDial records the result of an attempt. It returns the time at which the next attempt is
// due. If the dial loop must end, done is true instead.
func (c *Connector) finishDial(number uint64, s link.Session, begun time.Time, err error) (done bool, next time.Time) {
	if err == nil {
		c.OnSession(s)
	}
	c.mu.Lock()
	if c.stopDial == nil || c.attempts != number { // the connector was closed or became idle
		c.mu.Unlock()
		if err == nil {
			_ = s.Close(ErrClosing)
		}
		return true, next
	}
	defer c.mu.Unlock()
	if err != nil {
		c.failure = err
		if c.Name != "" {
			logger.Warningf("failed to connect to %s: %q", c.Name, err)
		}
		c.setStateLocked(connectivity.TransientFailure)
		return false, c.redial.failed(begun, c.Backoff)
	}
	c.stopDial()
	c.stopDial = nil
	c.failure = nil
	c.ready.Store(&session{s, begun})
	if c.connected {
		counters.Reconnections.Add(1)
	}
	c.connected = true
	c.setStateLocked(connectivity.Ready)
	return true, next
}

// Connect starts dialling if the state is Idle.
func (c *Connector) Connect() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noticeEndLocked()
	if c.state == connectivity.Idle {
		c.startDialingLocked()
	}
}

// Persist connects, and dials again whenever the state is Idle, even if there are no calls, until
// Close.
func (c *Connector) Persist() {
	go func() {
		for s := c.GetState(); s != connectivity.Shutdown; s = c.GetState() {
			if s == connectivity.Idle {
				c.Connect()
			} else {
				c.WaitForStateChange(context.Background(), s)
			}
		}
	}()
}

// ResetConnectBackoff ends a backoff: the next attempt starts at once.
func (c *Connector) ResetConnectBackoff() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.redial = redial{}
	if c.state != connectivity.TransientFailure {
		return
	}
	select {
	case c.dialNow <- struct{}{}:
	default:
	}
}

// GetState returns the current state.
func (c *Connector) GetState() connectivity.State {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noticeEndLocked()
	return c.state
}

// WaitForStateChange waits until the state differs from s. It returns false if ctx is
// done first.
func (c *Connector) WaitForStateChange(ctx context.Context, s connectivity.State) bool {
	for {
		c.mu.Lock()
		c.noticeEndLocked()
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

// Close closes all sessions and stops dialling. A second Close returns [ErrClosing].
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
	c.setStateLocked(connectivity.Shutdown)
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
