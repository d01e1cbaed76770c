package nearconnect

import (
	"context"
	"io"
	"sync"

	"connectrpc.com/connect/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/wait"
)

// A unaryStream is the caller's side of a unary call. Send only notes the request. Receive makes
// the call, on its own goroutine, when there is a request. It implements [connect.ClientStream].
type unaryStream struct {
	clientCall

	mu      sync.Mutex
	request any       // nil before Send
	closing bool      // CloseSend was called
	closed  bool      // Close
	change  wait.Cond // Receive waits for a request

	// Used only by the goroutine that receives.
	received        bool
	header, trailer metadata.MD
	peer            peer.Peer
	outcome         call.Outcome
	options         [7]grpc.CallOption // room for most calls
}

// SendHeaders implements [connect.ClientStream]. The header goes out with the request.
func (s *unaryStream) SendHeaders() error { return nil }

func (s *unaryStream) Send(msg any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closing || s.closed:
		return io.EOF
	case s.request != nil:
		return connect.NewError(connect.CodeInternal, "a unary call has one request, and Send was called before")
	}
	s.request = msg
	s.wakeLocked()
	return nil
}

func (s *unaryStream) CloseSend() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing = true
	s.wakeLocked()
	return nil
}

func (s *unaryStream) Close() error {
	s.mu.Lock()
	s.closed = true
	s.wakeLocked()
	s.mu.Unlock()
	s.release()
	return nil
}

func (s *unaryStream) wakeLocked() { wait.Unpark(s.change.Wake()) }

func (s *unaryStream) Receive(msg any) error {
	if s.received {
		return io.EOF
	}
	s.received = true
	request, err := s.awaitRequest()
	if err == nil {
		err = s.call(request, msg)
	}
	s.release()
	return err
}

// awaitRequest waits for Send.
func (s *unaryStream) awaitRequest() (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.request == nil && !s.closing && !s.closed {
		if err := s.change.WaitContext(s.ctx, &s.mu, wait.WaiterOf(s.ctx)); err != nil {
			return nil, connect.NewError(codeOf(err), err.Error()).WithCause(err)
		}
	}
	switch {
	case s.closed:
		return nil, connect.NewError(connect.CodeCanceled, "the call was closed").WithCause(context.Canceled)
	case s.request == nil:
		return nil, connect.NewError(connect.CodeUnimplemented, "unary request has zero messages")
	}
	return s.request, nil
}

// call makes the call.
func (s *unaryStream) call(request, reply any) error {
	ctx, err := s.start()
	if err != nil {
		return err
	}
	opts := append(append(s.options[:0], s.transport.opts...),
		call.RawHeader{HeaderCallOption: grpc.HeaderCallOption{HeaderAddr: &s.header}},
		call.RawTrailer{TrailerCallOption: grpc.TrailerCallOption{TrailerAddr: &s.trailer}},
		call.Verdict{Outcome: &s.outcome})
	if !s.transport.inproc {
		opts = append(opts, grpc.Peer(&s.peer))
	}
	err = s.transport.conn.Invoke(ctx, s.procedure, request, reply, opts...)
	s.setPeer(&s.peer)
	s.setHeader(s.header)
	s.setTrailer(s.trailer)
	remote := s.outcome.ByCallee
	if !s.outcome.Known { // the connection is one of grpc-go
		remote = s.header != nil || s.trailer != nil
	}
	return callerError(ctx, err, remote)
}
