package call

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"

	"github.com/nearcall/nearcall/internal/link"
)

// A refusable stream keeps the reason of its abort.
type refusable struct {
	abortable
	mu     sync.Mutex
	reason error
}

func (s *refusable) Abort(reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reason = reason
}

// A connection that takes no new calls is not idle before a call that waited for room was
// refused: a session that is closed before that aborts the call, and its caller cannot know
// that no handler has seen it.
func TestACallThatWaitedIsRefusedBeforeItsConnectionIsIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		server := NewServer(ServerConfig{MaxRemote: 1, MaxRecv: defaultMaxRecv, MaxSend: noLimit})
		server.Register(&desc, handlers{stream: func(grpc.ServerStream) error {
			<-release
			return nil
		}}, nil)
		c := server.AcceptClient(distant{}, nil).(*serverConn)
		waits := new(refusable)
		for _, s := range []link.Stream{new(abortable), waits} {
			if err := c.HandleStream(s, &link.CallHeader{Profile: &link.Profile{}, Method: streamMethod}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		mu := &server.workers.mu
		mu.Lock() // so that the call that waits learns nothing before the handler has returned
		last := c.running[0]
		c.refuse(refused("the server is stopping"))
		c.remove(last)
		if c.isIdle {
			t.Error("the connection is idle although a call is still to be refused")
		}
		c.running = append(c.running, last) // its worker removes it
		mu.Unlock()
		synctest.Wait()
		waits.mu.Lock()
		if !errors.Is(waits.reason, link.ErrUnprocessed) {
			t.Errorf("the call that waited ends with %v", waits.reason)
		}
		waits.mu.Unlock()
		close(release)
		<-c.idle
		c.Closed(context.Canceled)
		synctest.Wait()
		server.workers.close()
	})
}
