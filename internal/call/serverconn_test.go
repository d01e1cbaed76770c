package call

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
)

// An abortable stream carries no frames. Its caller may reset it.
type abortable struct {
	link.Stream
	reset func(error)
}

func (s *abortable) OnAbort(f func(error))    { s.reset = f }
func (s *abortable) SetWaiter(wait.Waiter)    {}
func (s *abortable) Send(*link.Frame) error   { return nil }
func (s *abortable) Recv(f *link.Frame) error { f.Reset(); return link.ErrEnded }
func (s *abortable) Abort(reason error)       {}

// If a peer resets its calls as soon as it has opened them, no more handlers run than calls
// may be open. At that limit the connection is not read until a handler returns.
func TestCallsThatAreResetAtOnceDoNotPileUpHandlers(t *testing.T) {
	for name, end := range map[string]func(*Server, link.Acceptor){
		"closed":  func(_ *Server, a link.Acceptor) { a.Closed(errStopped) },
		"drained": func(_ *Server, a link.Acceptor) { a.(*serverConn).drain() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { resetAtOnce(t, end) })
		})
	}
}

func resetAtOnce(t *testing.T, end func(*Server, link.Acceptor)) {
	const limit = 3
	var running atomic.Int32
	release := make(chan struct{})
	server := NewServer(ServerConfig{MaxRemote: limit, MaxRecv: defaultMaxRecv, MaxSend: noLimit})
	server.Register(&desc, handlers{stream: func(ss grpc.ServerStream) error {
		running.Add(1)
		<-release // ignores its context
		running.Add(-1)
		return ss.Context().Err()
	}}, nil)
	conn, other := server.Accept(distant{}), server.Accept(distant{})
	taken, refusal := 0, make(chan error)
	go func() { // the reader of conn's session
		for {
			s := new(abortable)
			if err := conn.HandleStream(s, &link.CallHeader{Profile: &link.Profile{}, Method: streamMethod}); err != nil {
				refusal <- err
				return
			}
			s.reset(context.Canceled)
			taken++
		}
	}()
	for returned := range 100 {
		synctest.Wait()
		if n := int(running.Load()); n != limit || taken != limit+returned {
			t.Fatalf("when %d have returned %d handlers run, and %d calls were taken, with a limit of %d", returned, n, taken, limit)
		}
		release <- struct{}{}
	}
	s := new(abortable)
	if err := other.HandleStream(s, &link.CallHeader{Profile: &link.Profile{}, Method: streamMethod}); err != nil {
		t.Errorf("another connection suffers: %v", err)
	}
	synctest.Wait()
	if n := running.Load(); n != limit+1 {
		t.Errorf("%d handlers run", n)
	}
	end(server, conn) // does not wait for handlers
	err := <-refusal
	if !errors.Is(err, link.ErrUnprocessed) {
		t.Errorf("the call that waited is refused with %v", err)
	}
	wantCode(t, linkStatus(err), codes.Unavailable)
	close(release)
	synctest.Wait()
	conn.Closed(errStopped)
	other.Closed(errStopped)
	server.workers.close()
}
