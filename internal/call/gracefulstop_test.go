package call

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcall/nearcall/internal/link"
)

// A leaving session ends at once. The test decides when it is gone.
type leaving struct {
	link.Session
	acceptor link.Acceptor
	closing  sync.Once
}

func (*leaving) Peer() *link.Peer { return &link.Peer{} }
func (*leaving) Drain()           {}

func (l *leaving) Close(reason error) error {
	l.closing.Do(func() { l.acceptor.Closed(reason) })
	return nil
}

// GracefulStop returns when all sessions are gone, including those that ended before it
// was called. Stop makes it return earlier.
func TestGracefulStopWaitsUntilSessionsAreGone(t *testing.T) {
	for name, hurry := range map[string]bool{"gone": false, "Stop": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := NewServer(ServerConfig{})
				sessions := []*leaving{{}, {}, {}}
				for _, l := range sessions {
					l.acceptor = s.Accept(l)
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
				if hurry {
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
				if n := len(s.conns); hurry != (n > 0) {
					t.Errorf("the server knows of %d connections", n)
				}
			})
		})
	}
}
