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

// An abortable stream carries nothing, and may be reset by its caller.
type abortable struct {
	link.Stream
	reset func(error)
}

func (s *abortable) OnAbort(f func(error))    { s.reset = f }
func (s *abortable) SetWaiter(wait.Waiter)    {}
func (s *abortable) Send(*link.Frame) error   { return nil }
func (s *abortable) Recv(f *link.Frame) error { f.Reset(); return link.ErrEnded }
func (s *abortable) Abort(reason error)       {}

// A connection whose peer resets its calls as soon as it has opened them runs no
// more handlers than its limit of calls and some spare.
func TestCallsThatAreResetAtOnceDoNotPileUpHandlers(t *testing.T) {
	for limit, most := range map[uint32]int{1: 1 + leastSpare, 100: 200} {
		synctest.Test(t, func(t *testing.T) { resetAtOnce(t, limit, most) })
	}
}

func resetAtOnce(t *testing.T, limit uint32, most int) {
	var running atomic.Int32
	release := make(chan struct{})
	server := NewServer(ServerConfig{MaxStreams: limit, MaxRecv: defaultMaxRecv, MaxSend: noLimit})
	server.Register(&desc, handlers{stream: func(ss grpc.ServerStream) error {
		running.Add(1)
		<-release // deaf to its context
		running.Add(-1)
		return ss.Context().Err()
	}}, nil)
	open := func(a link.Acceptor) error {
		s := new(abortable)
		err := a.Accept(s, &link.Open{Profile: &link.Profile{}, Method: streamMethod})
		s.reset(context.Canceled)
		synctest.Wait()
		return err
	}
	conn, other := server.Accept(distant{}), server.Accept(distant{})
	for i := range most {
		if err := open(conn); err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
	}
	for range 100 {
		err := open(conn)
		if !errors.Is(err, link.ErrUnprocessed) {
			t.Fatalf("a call too many: %v", err)
		}
		wantCode(t, linkStatus(err), codes.Unavailable)
	}
	if n := int(running.Load()); n != most {
		t.Errorf("with a limit of %d calls %d handlers run, want %d", limit, n, most)
	}
	if err := open(other); err != nil {
		t.Errorf("another connection suffers: %v", err)
	}
	for range 2 { // one of them may be the other connection's
		release <- struct{}{}
		synctest.Wait()
	}
	if err := open(conn); err != nil {
		t.Errorf("with room again: %v", err)
	}
	close(release)
	synctest.Wait()
	conn.Closed(errStopped)
	other.Closed(errStopped)
	server.workers.close()
}
