package nearcall

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

// A connector keeps one session with a target: it dials when somebody wants a
// session, and again, with backoff, for as long as that fails. It has a
// goroutine only while it dials or backs off.
//
// A session that has ended is noticed by whoever looks next; nobody watches, unless
// there is an observer. Then the next is dialled at once, unless one after the other
// ended as soon as it had begun: see pace.
type connector struct {
	dialer  link.Dialer
	backoff backoff.Config
	timeout time.Duration
	begin   func(link.Session) // told of each new session before it is used

	ctx    context.Context // ends with close
	cancel context.CancelFunc

	ready atomic.Pointer[session] // the session of state Ready

	mu       sync.Mutex
	draining []*session // no longer ready, with calls that may still run
	state    connectivity.State
	failure  error                    // of the last attempt, in state TransientFailure
	changed  chan struct{}            // closed, and replaced, when state changes
	observer func(connectivity.State) // told of each state but Shutdown, with mu held; nil for none
	hurry    chan struct{}            // has room for one; ends a backoff early
	dialing  func()                   // ends the attempts to connect; nil where there are none
	attempts uint64                   // how often they were begun
	pace     pace

	idle *idleness // nil where the connection stays
}

type session struct {
	link.Session
	begun time.Time // dialling it
}

// errClosing is what calls get after Close, and what a second Close returns:
// the very value that programs moved over from grpc-go compare with.
//
//lint:ignore SA1019 deprecated as something to compare with, which such programs do all the same
var errClosing = grpc.ErrClientConnClosing

// errIdle is why an idle session is closed. No call runs that could see it.
var errIdle = errors.New("the connection was idle")

func newConnector(o *dialOptions, backoff backoff.Config) *connector {
	c := &connector{
		dialer:  o.dialer,
		backoff: backoff,
		timeout: o.timeout,
		state:   connectivity.Idle,
		changed: make(chan struct{}),
		hurry:   make(chan struct{}, 1),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// Session implements [call.Sessions].
func (c *connector) Session(ctx context.Context, waitForReady bool) (link.Session, error) {
	if s := c.ready.Load(); s != nil && !link.IsClosed(s.Done()) {
		return s.Session, nil
	}
	if d, ok := c.dialer.(failingDialer); ok {
		return nil, status.Error(codes.Unavailable, d.err.Error()) // not worth waiting for
	}
	for {
		c.mu.Lock()
		c.look()
		state, failure, changed := c.state, c.failure, c.changed
		if state == connectivity.Idle {
			c.start()
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
			return nil, errClosing
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
func (c *connector) notReady(ctx context.Context) error {
	c.mu.Lock()
	failure := c.failure
	c.mu.Unlock()
	st := status.FromContextError(wait.DoneErr(ctx))
	if failure != nil {
		return status.Errorf(st.Code(), "%s while waiting for connections to become ready; last error: %v", st.Message(), failure)
	}
	return status.Errorf(st.Code(), "%s while waiting for connections to become ready", st.Message())
}

// over reports whether the session has ended and its calls with it.
func (s *session) over() bool { return link.IsClosed(s.Ended()) }

// look notices that the session has ended. mu is held.
func (c *connector) look() {
	if s := c.ready.Load(); s != nil && link.IsClosed(s.Done()) {
		c.pace.ended(s, c.backoff)
		c.retire(s)
		if c.state == connectivity.Ready {
			c.setState(connectivity.Idle)
		}
	}
}

// retire lets no further call have the session, which is drained. mu is held.
func (c *connector) retire(s *session) {
	c.ready.Store(nil)
	c.draining = append(slices.DeleteFunc(c.draining, (*session).over), s)
}

// setState changes the state. mu is held.
func (c *connector) setState(s connectivity.State) {
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

// observe tells f of the state, now and at each change, with mu held, until the
// connector is closed, of which it does not tell. There is one observer at most.
func (c *connector) observe(f func(connectivity.State)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == connectivity.Shutdown {
		return
	}
	c.look()
	c.observer = f
	f(c.state)
	go c.keepLooking()
}

// keepLooking notices the end of each session until the connector is closed.
func (c *connector) keepLooking() {
	for s := c.getState(); s != connectivity.Shutdown; s = c.getState() {
		c.waitForChange(context.Background(), s)
	}
}

// start begins to dial, when it is time to. mu is held and the state is Idle.
func (c *connector) start() {
	delay := time.Until(c.pace.due)
	if delay > 0 {
		c.failure = c.pace.failure()
		c.setState(connectivity.TransientFailure)
	} else {
		c.setState(connectivity.Connecting)
	}
	c.watch()
	var ctx context.Context
	ctx, c.dialing = context.WithCancel(c.ctx)
	c.attempts++
	go c.dial(ctx, c.attempts, delay)
}

// dial dials until there is a session, or all is done: the connector is closed
// or became idle. number is that of these attempts. The first comes after delay.
func (c *connector) dial(all context.Context, number uint64, delay time.Duration) {
	if delay > 0 {
		c.sleep(all, delay, nil)
	}
	for all.Err() == nil {
		worthwhile, stop := await(c.dialer)
		begun := time.Now()
		ctx, cancel := context.WithTimeout(all, c.timeout)
		s, err := c.dialer.Dial(ctx)
		cancel()
		done, next := c.settle(number, s, begun, err)
		if done {
			stop()
			return
		}
		c.sleep(all, time.Until(next), worthwhile)
		stop()
	}
}

// sleep waits for d, or until all is done, another attempt is worth while, or
// somebody is in a hurry.
func (c *connector) sleep(all context.Context, d time.Duration, worthwhile <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-worthwhile:
	case <-all.Done():
	case <-c.hurry:
	}
}

// await returns a channel that is closed when another attempt is worth while;
// nil where the dialer cannot tell. stop ends the wait.
func await(d link.Dialer) (worthwhile <-chan struct{}, stop func()) {
	if d, ok := d.(interface {
		Await() (<-chan struct{}, func())
	}); ok {
		return d.Await()
	}
	return nil, func() {}
}

// settle takes in what an attempt brought. It returns when the next is due, unless
// none is needed.
func (c *connector) settle(number uint64, s link.Session, begun time.Time, err error) (done bool, next time.Time) {
	if err == nil {
		c.begin(s)
	}
	c.mu.Lock()
	if c.dialing == nil || c.attempts != number { // nobody waits for it any more
		c.mu.Unlock()
		if err == nil {
			_ = s.Close(errClosing)
		}
		return true, next
	}
	defer c.mu.Unlock()
	if err != nil {
		c.failure = err
		c.setState(connectivity.TransientFailure)
		return false, c.pace.failed(begun, c.backoff)
	}
	c.dialing()
	c.dialing = nil
	c.failure = nil
	c.ready.Store(&session{s, begun})
	c.setState(connectivity.Ready)
	return true, next
}

func (c *connector) connect() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.look()
	if c.state == connectivity.Idle {
		c.start()
	}
}

func (c *connector) resetBackoff() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pace = pace{}
	if c.state != connectivity.TransientFailure {
		return
	}
	select {
	case c.hurry <- struct{}{}:
	default:
	}
}

func (c *connector) getState() connectivity.State {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.look()
	return c.state
}

func (c *connector) waitForChange(ctx context.Context, s connectivity.State) bool {
	for {
		c.mu.Lock()
		c.look()
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

func (c *connector) close() error {
	c.mu.Lock()
	if c.state == connectivity.Shutdown {
		c.mu.Unlock()
		return errClosing
	}
	sessions := c.draining
	if s := c.ready.Swap(nil); s != nil {
		sessions = append(sessions, s)
	}
	c.draining, c.dialing = nil, nil
	c.setState(connectivity.Shutdown)
	if c.idle != nil && c.idle.timer != nil {
		c.idle.timer.Stop()
	}
	c.mu.Unlock()
	c.cancel()
	for _, s := range sessions {
		_ = s.Close(errClosing)
	}
	return nil
}
