package connector

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
)

// A fakeSession is a session that ends when a test says so.
type fakeSession struct {
	link.Session
	done chan struct{}
}

func (s fakeSession) Done() <-chan struct{}  { return s.done }
func (s fakeSession) Ended() <-chan struct{} { return s.done }
func (s fakeSession) Retire()                {}
func (s fakeSession) Close(error) error      { return nil }

// A waiting is a connector whose attempts wait for the test, and one call of its methods.
type waiting struct {
	*Connector
	ctx       context.Context // of the call
	cancel    context.CancelFunc
	session   fakeSession
	results   chan error    // nil for the session; received by Dial
	target    chan struct{} // closed when another attempt may succeed
	dialEnded chan struct{} // closed when the first Dial has returned
	loopGoes  chan struct{} // closed when the first backoff has ended
}

// Dial implements [link.Dialer].
func (w *waiting) Dial(ctx context.Context) (link.Session, error) {
	defer func() {
		if !link.IsClosed(w.dialEnded) {
			close(w.dialEnded)
		}
	}()
	select {
	case err := <-w.results:
		return w.session, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Await returns a channel for one attempt, and what is called after its backoff.
func (w *waiting) Await() (<-chan struct{}, func()) {
	return w.target, func() {
		if !link.IsClosed(w.loopGoes) {
			close(w.loopGoes)
		}
	}
}

// call runs f, and returns a channel that is closed when f has returned.
func call(f func()) <-chan struct{} {
	over := make(chan struct{})
	go func() {
		defer close(over)
		f()
	}()
	return over
}

// fail makes the first attempt fail, so that the connector backs off.
func (w *waiting) fail() {
	w.Connect()
	w.results <- errors.New("the server is not there")
	synctest.Wait()
}

// A place is where the connector waits, and all that must end the wait. begin returns a channel that is
// closed when the wait has ended.
type place struct {
	what  string
	begin func(w *waiting) (ended <-chan struct{})
	ends  []string
}

// The goroutines of Persist and of Observe wait with WaitForStateChange until Close: a bubble whose
// goroutines do not end fails. Nothing else of the package waits: its lock is held neither during a wait nor
// while a session is ended.
var allWaits = []place{
	{"Pick, connecting", func(w *waiting) <-chan struct{} {
		return call(func() { _, _ = w.Pick(w.ctx, false) })
	}, []string{"a session", "a failure", "the attempt's timeout", "Close", "cancelling", "the deadline"}},
	{"Pick that waits for ready, connecting", func(w *waiting) <-chan struct{} {
		return call(func() { _, _ = w.Pick(w.ctx, true) })
	}, []string{"a session", "Close", "cancelling", "the deadline"}},
	{"Pick that waits for ready, backing off", func(w *waiting) <-chan struct{} {
		w.fail()
		return call(func() { _, _ = w.Pick(w.ctx, true) })
	}, []string{"ResetConnectBackoff and a session", "the target and a session", "Close", "cancelling", "the deadline"}},
	{"WaitForStateChange, connecting", func(w *waiting) <-chan struct{} {
		w.Connect()
		return call(func() { w.WaitForStateChange(w.ctx, connectivity.Connecting) })
	}, []string{"a session", "a failure", "the attempt's timeout", "Close", "cancelling", "the deadline", "the idle timeout"}},
	{"WaitForStateChange, backing off", func(w *waiting) <-chan struct{} {
		w.fail()
		return call(func() { w.WaitForStateChange(w.ctx, connectivity.TransientFailure) })
	}, []string{"ResetConnectBackoff and a session", "the target and a session", "Close", "cancelling", "the deadline", "the idle timeout"}},
	{"WaitForStateChange, ready", func(w *waiting) <-chan struct{} {
		w.Connect()
		w.results <- nil
		synctest.Wait()
		return call(func() { w.WaitForStateChange(w.ctx, connectivity.Ready) })
	}, []string{"the session's end", "Close", "cancelling", "the deadline", "the idle timeout"}},
	{"an attempt", func(w *waiting) <-chan struct{} {
		w.Connect()
		return w.dialEnded
	}, []string{"a session", "a failure", "the attempt's timeout", "Close", "the idle timeout"}},
	{"a backoff", func(w *waiting) <-chan struct{} {
		w.fail()
		return w.loopGoes
	}, []string{"ResetConnectBackoff", "the target", "the backoff's time", "Close", "the idle timeout"}},
}

// How waits end. The times are such that the other timers of the row do not end it.
var waitEnds = map[string]func(w *waiting){
	"a session":                         func(w *waiting) { w.results <- nil },
	"a failure":                         func(w *waiting) { w.results <- errors.New("refused") },
	"the attempt's timeout":             func(*waiting) { time.Sleep(time.Hour + 1) }, // as long as the backoff at least
	"the backoff's time":                func(*waiting) { time.Sleep(time.Hour + 1) },
	"ResetConnectBackoff":               func(w *waiting) { w.ResetConnectBackoff() },
	"ResetConnectBackoff and a session": func(w *waiting) { w.ResetConnectBackoff(); w.results <- nil },
	"the target":                        func(w *waiting) { close(w.target) },
	"the target and a session":          func(w *waiting) { close(w.target); w.results <- nil },
	"the session's end":                 func(w *waiting) { close(w.session.done) },
	"Close":                             func(w *waiting) { _ = w.Close() },
	"cancelling":                        func(w *waiting) { w.cancel() },
	"the deadline":                      func(*waiting) { time.Sleep(10*time.Minute + 1) },
	"the idle timeout":                  func(*waiting) { time.Sleep(2 * time.Minute) },
}

// What a session calls when it is retired or closed may use the connector.
func TestSessionsAreEndedWithoutTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c *Connector
		ended := 0
		s := &usingSession{fakeSession{done: make(chan struct{})}, func() { ended++; c.GetState() }}
		c = New(Config{Options: &options.Client{}, Dialer: dialled{s}, Idle: NewIdleness(time.Minute), OnSession: func(link.Session) {}})
		for range 2 {
			c.Connect()
			synctest.Wait()
			time.Sleep(2 * time.Minute)
		}
		c.Connect()
		synctest.Wait()
		_ = c.Close()
		if ended != 5 { // it is retired and closed twice, and then closed
			t.Errorf("the session was ended %d times", ended)
		}
	})
}

type dialled struct{ s link.Session }

func (d dialled) Dial(context.Context) (link.Session, error) { return d.s, nil }

type usingSession struct {
	fakeSession
	use func()
}

func (s *usingSession) Retire()           { s.use() }
func (s *usingSession) Close(error) error { s.use(); return nil }

// Each place where a connector waits is left for each reason for which it must be.
func TestAllWaitsEnd(t *testing.T) {
	for _, wait := range allWaits {
		for _, by := range wait.ends {
			t.Run(wait.what+"/"+by, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := &waiting{
						session: fakeSession{done: make(chan struct{})},
						results: make(chan error), target: make(chan struct{}), dialEnded: make(chan struct{}), loopGoes: make(chan struct{}),
					}
					w.ctx, w.cancel = context.WithCancel(t.Context())
					defer w.cancel()
					if by == "the deadline" {
						w.ctx, w.cancel = context.WithTimeout(w.ctx, 10*time.Minute)
						defer w.cancel()
					}
					cfg := Config{Options: &options.Client{}, Dialer: w, Backoff: backoff.Config{BaseDelay: time.Hour, MaxDelay: time.Hour, Multiplier: 1}, OnSession: func(link.Session) {}}
					if by == "the idle timeout" {
						cfg.Idle = NewIdleness(time.Minute)
					}
					w.Connector = New(cfg)
					w.Observe(func(connectivity.State) {})
					ended := wait.begin(w)
					synctest.Wait()
					if link.IsClosed(ended) {
						t.Fatalf("%s: it does not wait", wait.what)
					}
					waitEnds[by](w)
					synctest.Wait()
					if !link.IsClosed(ended) {
						t.Errorf("%s: it is not ended by %s", wait.what, by)
					}
					w.cancel()
					_ = w.Close()
				})
			})
		}
	}
}
