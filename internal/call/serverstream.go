package call

import (
	"context"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/grpclog"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
)

// run runs the handler of a streaming method.
func (s *serverStream) run() {
	c := &s.call
	m, server := c.method, c.conn.server
	var err error
	if server.stream == nil {
		err = m.stream.Handler(m.impl, s)
	} else {
		info := &grpc.StreamServerInfo{
			FullMethod:     c.open.Method,
			IsClientStream: m.stream.ClientStreams,
			IsServerStream: m.stream.ServerStreams,
		}
		err = server.stream(m.impl, s, info, m.stream.Handler)
	}
	c.finish(statusOf(err))
}

// A serverStream is the server's side of a call on a stream. It is the handler's
// grpc.ServerStream.
type serverStream struct {
	call    serverCall
	carrier link.Stream
	codec   link.Codec

	// headerMu is held while a header is sent without a message, so that no
	// message overtakes it.
	headerMu sync.Mutex

	// Used only by the goroutine that sends.
	sendFrame link.Frame
	sendYield yielder
	headerOut bool // the header was sent; may be false after SendHeader

	// Used only by the goroutine that receives.
	recvFrame link.Frame
	recvYield yielder
	recvOnce  bool // a message was received
	recvEnd   bool // the caller sends no more
}

// finish ends the call with st, nil for OK. Only the first call has an effect.
func (s *serverStream) finish(st *status.Status) {
	c := &s.call
	s.headerMu.Lock()
	c.mu.Lock()
	end, first := c.claimEnd(st)
	header := c.headerBeforeEnd()
	c.mu.Unlock()
	s.headerMu.Unlock()
	if first {
		c.stats.header(header)
		c.stats.trailer(end.Trailer)
		_ = s.carrier.Send(&link.Frame{Header: header, End: &end})
		c.cancel(context.Canceled)
	}
}

// header returns the header to send with the next message, or nil if it was sent before.
func (s *serverStream) header() metadata.MD {
	if s.headerOut {
		return nil
	}
	s.headerMu.Lock()
	defer s.headerMu.Unlock()
	s.call.mu.Lock()
	defer s.call.mu.Unlock()
	return s.call.headerBeforeMessage()
}

func (s *serverStream) Context() context.Context        { return s.call.context() }
func (s *serverStream) SetHeader(md metadata.MD) error  { return s.call.SetHeader(md) }
func (s *serverStream) SendHeader(md metadata.MD) error { return s.call.SendHeader(md) }

var logger = grpclog.Component("nearcall")

// SetTrailer implements grpc.ServerStream. As in grpc-go, invalid metadata is logged, as
// there is no error to return, and sent.
func (s *serverStream) SetTrailer(md metadata.MD) {
	if err := validate(md); err != nil {
		logger.Errorf("stream: failed to validate md when setting trailer, err: %v", err)
	}
	_ = s.call.SetTrailer(md)
}

// SendMsg implements grpc.ServerStream. As in grpc-go, an error ends the call for the
// caller, unless it has ended.
func (s *serverStream) SendMsg(m any) error {
	s.sendYield.beforeMessage(s.call.method.loop)
	err := s.send(m)
	if err != nil {
		s.call.finish(status.Convert(err))
	}
	return err
}

func (s *serverStream) send(m any) error {
	c := &s.call
	f := &s.sendFrame
	f.Msg, f.HasMsg = messageOf(m, s.codec), true
	if err := c.checkSend(&f.Msg); err != nil {
		return err
	}
	if err := c.Err(); err != nil {
		return contextStatus(err)
	}
	f.Header = s.header()
	header := f.Header
	err := s.carrier.Send(f)
	if _, refused := err.(*link.SendError); refused {
		c.restoreHeader(header)
	} else {
		s.headerOut = true
	}
	f.Msg, f.Header = link.Message{}, nil
	if err != nil {
		return c.brokenError(err)
	}
	c.stats.header(header)
	c.stats.sent(m, s.codec)
	return nil
}

// reply ends a unary call with m, in one frame. If it returns an error, the call has not
// ended.
func (s *serverStream) reply(m any) error {
	c := &s.call
	f := &s.sendFrame
	f.Msg, f.HasMsg = messageOf(m, s.codec), true
	if err := c.checkSend(&f.Msg); err != nil {
		return err
	}
	if err := c.Err(); err != nil {
		return contextStatus(err)
	}
	s.headerMu.Lock()
	c.mu.Lock()
	header := c.headerBeforeMessage()
	end, first := c.claimEnd(nil)
	c.mu.Unlock()
	s.headerMu.Unlock()
	if !first {
		return nil
	}
	f.Header, f.End = header, &end
	sent := false
	defer func() { // also when a codec panics
		*f = link.Frame{}
		if !sent {
			c.reopen(header)
		}
	}()
	err := s.carrier.Send(f)
	if err != nil {
		return c.brokenError(err)
	}
	sent = true
	defer c.cancel(context.Canceled)
	c.stats.header(header)
	c.stats.sent(m, s.codec)
	c.stats.trailer(end.Trailer)
	return nil
}

// RecvMsg implements grpc.ServerStream.
func (s *serverStream) RecvMsg(m any) error {
	s.recvYield.beforeMessage(s.call.method.loop)
	err := s.recv(m)
	if err != nil && err != io.EOF {
		s.call.finish(status.Convert(err))
	}
	return err
}

func (s *serverStream) recv(m any) error {
	c := &s.call
	err := s.next(m)
	if err == io.EOF && !c.method.clientStreams() && !s.recvOnce {
		return status.Error(codes.Internal, "cardinality violation: received no request message from non-client-streaming RPC")
	}
	if err != nil {
		return err
	}
	s.recvOnce = true
	c.stats.received(m, s.codec)
	if c.method.clientStreams() {
		return nil
	}
	switch err := s.next(m); err {
	case io.EOF:
		return nil
	case nil:
		return status.Error(codes.Internal, "cardinality violation: received multiple request messages for non-client-streaming RPC")
	default:
		return err
	}
}

// next receives one message. It returns io.EOF after the last.
func (s *serverStream) next(m any) error {
	c := &s.call
	if s.recvEnd {
		return io.EOF
	}
	if err := c.Err(); err != nil {
		s.carrier.Abort(err)
	}
	f := &s.recvFrame
	f.Sink = link.Sink{Dst: wanted(m), Codec: s.codec, Limit: c.maxRecv()}
	for {
		err := s.carrier.Recv(f)
		s.recvEnd = f.EndSend
		if err != nil {
			f.Dst = nil
			return c.brokenError(err)
		}
		if f.Got || s.recvEnd {
			f.Dst = nil
			if !f.Got {
				return io.EOF
			}
			return nil
		}
	}
}
