package nearcall

import (
	"context"
	"maps"
	"net"
	"slices"
	"sync"

	"google.golang.org/grpc"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/transport/sock"
)

// How a server stops.
//
// A server is a list of parts. Calls come in through the first ones and run in the last ones: see
// steps. There are two kinds of stops. The graceful one drains each part in turn, the hard one
// closes each part. GracefulStop waits for the graceful stop, Stop for the hard one, and Shutdown
// for the graceful one until its context ends.
//
// Invariants:
//
//   - Each kind begins once, when it is first asked for, and runs to its end on its own goroutine,
//     even if nobody waits for it any more. All that ask for it wait for that end.
//   - The hard stop may begin while the graceful one runs. When a part is closed, its drain returns
//     without waiting for clients. It still waits for the handlers, whose contexts were cancelled.
//     So the graceful stop can also begin later than the hard one, to wait for handlers.
//   - The hard stop does not begin when the graceful one is over. So the graceful stop was
//     complete if the hard one has not begun.
//   - Once a stop has begun, no listener is added.
//   - Serve and ServeConn return when one of the stops is over.

// A stopKind is one of the two kinds of stops, or a set of them.
type stopKind uint8

const (
	gracefulStop stopKind = 1 << iota
	hardStop
)

// A step of a stop concerns one part of the server. close may run while drain does.
type step struct{ drain, close func() }

// steps returns the steps of both kinds of stops, in their order.
func (s *Server) steps() []step {
	return []step{
		// First of all: a client that has connected may have made calls, and its handshake makes a
		// session that the next steps must know.
		{s.retireListeners, s.closeListeners},
		// Before calls are refused: package http answers the requests that arrive before its GOAWAY.
		{s.web.Drain, func() {}},
		// The calls of ordinary gRPC clients, and of all others.
		{together(s.grpc.GracefulStop, s.core.GracefulStop), together(s.grpc.Stop, s.core.Stop)},
		// When no call is left: what is left to send is answers.
		{func() { s.web.Close(true) }, func() { s.web.Close(false) }},
		// Last: a handshake can outlive its listener, in the credentials' code.
		{s.serving.Wait, s.serving.Wait},
	}
}

func together(a, b func()) func() {
	return func() {
		var other sync.WaitGroup
		other.Go(a)
		b()
		other.Wait()
	}
}

// stop begins a stop unless it has begun before. The result is closed when it is over. A complete
// graceful stop is the result for both kinds.
func (s *Server) stop(kind stopKind) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.begun == gracefulStop && link.IsClosed(s.drained) {
		return s.drained
	}
	over := s.drained
	if kind == hardStop {
		over = s.closed
	}
	if s.begun&kind == 0 {
		s.begun |= kind
		go s.runStop(kind, over)
	}
	return over
}

// runStop takes the steps of a stop, and closes over.
func (s *Server) runStop(kind stopKind, over chan<- struct{}) {
	defer func() { // also if a stats handler calls Goexit
		s.mu.Lock()
		defer s.mu.Unlock()
		close(over)
	}()
	for _, step := range s.steps() {
		if kind == hardStop {
			step.close()
		} else {
			step.drain()
		}
	}
}

// Stop closes all listeners and connections and cancels running calls, whose callers get
// Unavailable. It waits for handlers to return only if [WaitForHandlers] is set. A caller
// whose own goroutine runs the handler gets Unavailable when the handler returns: see
// [ClientConn.Close]. A web client over HTTP/2 also gets it then, or loses its connection after
// a second. Stop does nothing after [Server.GracefulStop] has returned.
func (s *Server) Stop() { <-s.stop(hardStop) }

// GracefulStop closes all listeners, refuses new calls with Unavailable, and waits until running
// calls have ended and their callers have received everything that was sent to them. Calls that a
// client has made before it learns that the server is stopping are not refused. When GracefulStop
// returns the program can exit. Clients that connected before GracefulStop was called get a second
// for their handshake, so that a restart loses no call: see [TakeOver].
//
// It gives up on a client in another process that has read nothing for 10 seconds after the last
// handler of its calls returned. It also gives up on a web client that has sent nothing of
// its unary request for 5 seconds. A concurrent [Server.Stop] cuts the wait short: Stop cancels
// the contexts of the handlers, and GracefulStop returns when they have returned. A caller whose
// own goroutine runs the handler is released when the handler returns: see [ClientConn.Close].
// Calls of ordinary gRPC clients end as with the GracefulStop of grpc-go, which waits for a client
// for as long as its connection lasts. For a limit of time see [Server.Shutdown].
func (s *Server) GracefulStop() { <-s.stop(gracefulStop) }

// Shutdown is [Server.GracefulStop] until ctx ends, and [Server.Stop] then. So it returns soon
// after the end of ctx, even if there are handlers that ignore their contexts, unless
// [WaitForHandlers] is set.
//
// It returns nil if the graceful stop was complete, and the error of ctx if ctx ended before. If
// another call has cut the graceful stop short, a Stop or a Shutdown with another context, then
// Shutdown waits for the handlers as GracefulStop does, and returns [grpc.ErrServerStopped]. It may
// be called several times. Like the Shutdown of [net/http.Server], it panics if ctx is nil.
func (s *Server) Shutdown(ctx context.Context) error {
	if ctx.Err() == nil {
		select {
		case <-s.stop(gracefulStop):
			return s.cutShort(grpc.ErrServerStopped)
		case <-ctx.Done():
		}
	}
	<-s.stop(hardStop)
	return s.cutShort(ctx.Err())
}

// cutShort returns nil if the graceful stop was complete, and err otherwise. One of the stops is
// over.
func (s *Server) cutShort(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.begun == gracefulStop {
		return nil
	}
	return err
}

// open adds lis to the listeners that a stop ends and waits for. It reports false if a stop has
// begun.
func (s *Server) open(lis net.Listener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.begun != 0 {
		return false
	}
	s.core.Start()
	s.listeners[lis]++
	s.serving.Add(1)
	return true
}

// remove undoes what open did, when all handshakes of lis have ended.
func (s *Server) remove(lis net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listeners[lis]--; s.listeners[lis] == 0 {
		delete(s.listeners, lis)
	}
	s.serving.Done()
}

// takesCalls ends registration. It reports false if calls are refused: when the hard stop has begun,
// or when the graceful one has drained all that calls come through.
func (s *Server) takesCalls() bool {
	s.mu.Lock()
	hard := s.begun&hardStop != 0
	s.mu.Unlock()
	return !hard && s.core.Start()
}

// awaitStop waits until a stop is over. It reports false, at once, if none has begun.
func (s *Server) awaitStop() bool {
	s.mu.Lock()
	begun := s.begun != 0
	s.mu.Unlock()
	if begun {
		select {
		case <-s.drained:
		case <-s.closed:
		}
	}
	return begun
}

func (s *Server) openListeners() []net.Listener {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.listeners))
}

// retireListeners closes all listeners. It waits for the handshakes of connections that clients have
// already made to sockets.
func (s *Server) retireListeners() {
	for _, lis := range s.openListeners() {
		if l, ok := lis.(*sock.Listener); ok {
			l.Retire()
		} else {
			_ = lis.Close()
		}
	}
	s.serving.Wait()
}

// closeListeners closes all listeners, and the connections that are in their handshake.
func (s *Server) closeListeners() {
	for _, lis := range s.openListeners() {
		_ = lis.Close()
	}
}
