package nearconnect

import (
	"context"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"connectrpc.com/connect/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/nearcall/nearcall/internal/call/client"
	"github.com/nearcall/nearcall/internal/wait"
)

// A clientStream is the caller's side of a stream. The first SendHeaders, Send or Receive opens
// gRPC's stream. It implements [connect.ClientStream].
type clientStream struct {
	clientCall
	desc   grpc.StreamDesc
	closed atomic.Bool

	// Opening may wait for a connection. The sender or the receiver opens the stream, whichever
	// is first.
	opening wait.Mutex
	opened  bool
	stream  grpc.ClientStream
	err     error // why stream is nil

	// Used only by the goroutine that sends.
	sentLast bool

	// Used only by the goroutine that receives.
	outcome     client.Outcome // Known is set when the stream is opened
	headerKnown bool
	end         error // once set, Receive returns it
}

// open returns gRPC's stream, and opens it if nobody has.
func (s *clientStream) open() (grpc.ClientStream, error) {
	s.opening.Lock(wait.WaiterOf(s.ctx))
	defer s.opening.Unlock()
	if s.opened {
		return s.stream, s.err
	}
	s.opened = true
	defer wait.OnAbandon(wait.WaiterOf(s.ctx), s)()
	ctx, err := s.start()
	if err == nil {
		s.stream, err = s.transport.conn.NewStream(ctx, &s.desc, s.procedure, append(slices.Clip(s.transport.opts), client.Verdict{Outcome: &s.outcome}, client.SendsOn{})...)
	}
	if err != nil {
		s.err = s.errorOf(err, false)
		s.release()
	}
	return s.stream, s.err
}

// Abandoned implements [wait.Abandoned], for a task that opens the stream.
func (s *clientStream) Abandoned() {
	s.err = connect.NewError(connect.CodeCanceled, "the task that began the call runs on a loop that runs no more")
	s.release()
	s.opening.Unlock()
}

// errorOf returns the caller's error for err, an error of gRPC.
func (s *clientStream) errorOf(err error, remote bool) error {
	if err != nil && err != io.EOF && s.closed.Load() && s.ctx.Err() == nil {
		return connect.NewError(connect.CodeCanceled, "the call was closed").WithCause(context.Canceled)
	}
	return callerError(s.ctx, err, remote)
}

func (s *clientStream) SendHeaders() error {
	_, err := s.open()
	return err
}

// Send implements [connect.ClientStream]. If the caller's context has ended the call, it returns
// that error. If the call has ended otherwise, it returns io.EOF, and Receive returns the reason.
// If msg cannot be sent, the call goes on without it.
func (s *clientStream) Send(msg any) error {
	if s.sentLast {
		return io.EOF
	}
	stream, err := s.open()
	if err != nil {
		return err
	}
	switch err = stream.SendMsg(msg); {
	case err == nil:
		return nil
	case err != io.EOF: // the message cannot be sent
		if !s.outcome.Known { // grpc-go has ended the call
			s.release()
		}
		return s.errorOf(err, false)
	case s.ctx.Err() != nil:
		return connect.NewError(codeOf(s.ctx.Err()), s.ctx.Err().Error()).WithCause(s.ctx.Err())
	}
	return io.EOF
}

func (s *clientStream) CloseSend() error {
	if s.sentLast {
		return nil
	}
	s.sentLast = true
	stream, err := s.open()
	if err != nil {
		return err
	}
	return s.errorOf(stream.CloseSend(), false)
}

func (s *clientStream) Receive(msg any) error {
	if s.end != nil {
		return s.end
	}
	stream, err := s.open()
	if err != nil {
		s.end = err
		return err
	}
	err = stream.RecvMsg(msg)
	if !s.headerKnown {
		s.headerKnown = true
		s.learnHeader(stream)
	}
	if err == nil && s.desc.ServerStreams {
		return nil
	}
	s.setTrailer(stream.Trailer())
	err = s.errorOf(err, s.outcome.ByCallee || !s.outcome.Known)
	if s.end = err; err == nil {
		s.end = io.EOF
	}
	s.release()
	return err
}

// learnHeader takes the header of the callee's first answer, which has arrived.
func (s *clientStream) learnHeader(stream grpc.ClientStream) {
	if s.info == nil {
		return
	}
	if p, ok := peer.FromContext(stream.Context()); ok {
		s.setPeer(p)
	}
	if md, err := stream.Header(); err == nil {
		s.setHeader(md)
	}
}

func (s *clientStream) Close() error {
	s.closed.Store(true)
	s.release()
	return nil
}

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
	outcome         client.Outcome
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
		client.RawHeader{HeaderCallOption: grpc.HeaderCallOption{HeaderAddr: &s.header}},
		client.RawTrailer{TrailerCallOption: grpc.TrailerCallOption{TrailerAddr: &s.trailer}},
		client.Verdict{Outcome: &s.outcome})
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
