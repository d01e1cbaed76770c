package server

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/testing/callservice"
)

// An abortable stream carries no frames. Its caller may reset it.
type abortable struct {
	link.Stream
	reset func(error)
}

func (s *abortable) OnAbort(f func(error))    { s.reset = f }
func (s *abortable) Send(*link.Frame) error   { return nil }
func (s *abortable) Recv(f *link.Frame) error { f.Reset(); return link.ErrEnded }
func (s *abortable) Abort(reason error)       {}

// If a peer resets its calls as soon as it has opened them, no more handlers run than calls
// may be open, and nothing is left of the other calls. The goroutine that reads the connection never
// waits: what it reads next may end the handlers that run.
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
	server := New(limited(limit), Config{})
	server.Register(&desc, handlers{Stream: func(ss grpc.ServerStream) error {
		running.Add(1)
		<-release // ignores its context
		running.Add(-1)
		return ss.Context().Err()
	}}, nil)
	conn, other := server.Accept(callservice.Distant{}), server.Accept(callservice.Distant{})
	offer := func(to link.Acceptor) *refusable {
		s := new(refusable)
		if err := to.HandleStream(s, &link.CallHeader{Profile: &link.Profile{}, Method: streamMethod}); err != nil {
			t.Errorf("a call is refused: %v", err)
		}
		return s
	}
	for range 100 { // this goroutine is the reader of conn's session
		for range 100 {
			offer(conn).reset(context.Canceled)
		}
		synctest.Wait()
		a := &conn.(*serverConn).admission
		a.mu.Lock()
		if n := int(running.Load()); n != limit || a.queue.Len() > 0 || a.undecided > 0 || a.taken != limit {
			t.Fatalf("%d handlers run and %d places are taken, with a limit of %d; %d calls wait, of %d is nothing known", n, a.taken, limit, a.queue.Len(), a.undecided)
		}
		a.mu.Unlock()
		release <- struct{}{}
		synctest.Wait()
	}
	offer(conn)
	waits := offer(conn)
	offer(other) // does not suffer
	synctest.Wait()
	if n := running.Load(); n != limit+1 {
		t.Errorf("%d handlers run", n)
	}
	end(server, conn) // does not wait for handlers
	synctest.Wait()
	waits.mu.Lock()
	if err := waits.reason; !errors.Is(err, link.ErrUnprocessed) {
		t.Errorf("the call that waited is refused with %v", err)
	} else {
		callservice.WantCode(t, call.LinkStatus(err), codes.Unavailable)
	}
	waits.mu.Unlock()
	close(release)
	synctest.Wait()
	conn.Closed(errStopped)
	other.Closed(errStopped)
	server.scheduler.close()
}
