package server

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/nearcall/nearcall/internal/link"
)

// A leaving session ends at once. The test decides when it is drained, and when it is gone.
type leaving struct {
	link.Session
	acceptor link.Acceptor
	drained  chan struct{}
	closing  sync.Once
}

func (*leaving) Peer() *link.Peer         { return &link.Peer{} }
func (l *leaving) Drain() <-chan struct{} { return l.drained }

func (l *leaving) Close(reason error) error {
	l.closing.Do(func() { l.acceptor.Closed(reason) })
	return nil
}

// GracefulStop returns when all sessions are gone, including those that ended before it
// was called. Stop makes it return earlier.
func TestGracefulStopWaitsUntilSessionsAreGone(t *testing.T) {
	for name, stopNow := range map[string]bool{"gone": false, "Stop": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := New(limited(0), Config{})
				sessions := []*leaving{{}, {}, {}}
				for _, l := range sessions {
					l.acceptor, l.drained = s.Accept(l), make(chan struct{})
					close(l.drained)
				}
				_ = sessions[1].Close(errors.New("it was old"))
				began, stops := time.Now(), make(chan time.Duration)
				for range 2 {
					go func() {
						s.GracefulStop()
						stops <- time.Since(began)
					}()
				}
				synctest.Wait()
				want := 5 * time.Second
				if stopNow {
					want = 0
					s.Stop()
				} else {
					for i, l := range sessions {
						time.AfterFunc(time.Duration(3+i)*time.Second, l.acceptor.Gone)
					}
				}
				for range 2 {
					if took := <-stops; took != want {
						t.Errorf("GracefulStop takes %v, want %v", took, want)
					}
				}
				if n := len(s.conns); stopNow != (n > 0) {
					t.Errorf("the server knows of %d connections", n)
				}
			})
		})
	}
}

// GracefulStop takes the calls that a peer makes until its session is drained, and waits for
// them. Stop ends the wait for a peer that does not answer.
func TestGracefulStopTakesCallsUntilASessionIsDrained(t *testing.T) {
	for name, stopNow := range map[string]bool{"drained": false, "Stop": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := New(limited(0), Config{})
				running, release := 0, make(chan struct{})
				s.Register(&desc, handlers{Stream: func(grpc.ServerStream) error {
					running++
					<-release
					return nil
				}}, nil)
				fast, slow := &leaving{drained: make(chan struct{})}, &leaving{drained: make(chan struct{})}
				fast.acceptor, slow.acceptor = s.Accept(fast), s.Accept(slow)
				close(fast.drained)
				stopped := make(chan struct{})
				go func() {
					s.GracefulStop()
					close(stopped)
				}()
				synctest.Wait()
				call := func() error {
					return slow.acceptor.HandleStream(new(abortable), &link.CallHeader{Profile: &link.Profile{}, Method: streamMethod})
				}
				if err := call(); err != nil {
					t.Errorf("a call that was on its way is refused with %v", err)
				}
				if stopNow {
					go s.Stop()
				} else {
					close(slow.drained)
				}
				synctest.Wait()
				if err := call(); !errors.Is(err, link.ErrUnprocessed) {
					t.Errorf("a call after the drain is refused with %v", err)
				}
				if running != 1 || link.IsClosed(stopped) {
					t.Errorf("%d handlers run when GracefulStop returns", running)
				}
				close(release)
				fast.acceptor.Gone()
				slow.acceptor.Gone()
				<-stopped
			})
		})
	}
}
