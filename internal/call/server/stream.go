package server

import (
	"context"
	"io"

	"google.golang.org/grpc/grpclog"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
)

// A serverStream is the server's side of a call of a streaming method. It is the handler's
// grpc.ServerStream.
type serverStream struct {
	carried

	// Used only by the goroutine that sends.
	sendFrame link.Frame
	sendYield call.Yielder
	sendsOn   bool // a message that cannot be sent does not end the call
	headerOut bool // the header was sent; can be false after SendHeader

	// Used only by the goroutine that receives.
	recvFrame link.Frame
	recvYield call.Yielder
}

// header returns the header to send with the next message, or nil if it was sent before.
func (s *serverStream) header() metadata.MD {
	if s.headerOut {
		return nil
	}
	s.call.lockHeader()
	defer s.call.unlockHeader()
	return s.call.headerBeforeMessageLocked()
}

func (s *serverStream) Context() context.Context        { return s.call.context() }
func (s *serverStream) SetHeader(md metadata.MD) error  { return s.call.SetHeader(md) }
func (s *serverStream) SendHeader(md metadata.MD) error { return s.call.SendHeader(md) }

// Encodes implements [call.Encoder].
func (s *serverStream) Encodes() (message.Codec, string) { return s.call.Encodes() }

var logger = grpclog.Component("nearcall")

// SetTrailer implements grpc.ServerStream. As in grpc-go, it logs invalid metadata and still
// accepts it, because it cannot return an error.
func (s *serverStream) SetTrailer(md metadata.MD) {
	if err := call.Validate(md); err != nil {
		logger.Errorf("stream: failed to validate md when setting trailer, err: %v", err)
	}
	_ = s.call.SetTrailer(md)
}

// SendMsg implements grpc.ServerStream. As in grpc-go, an error of SendMsg ends the call for the
// caller.
func (s *serverStream) SendMsg(m any) error {
	s.sendYield.BeforeMessage(s.call.method.loop)
	unsent, err := s.send(m)
	if err != nil && !(unsent && s.sendsOn) {
		s.call.finish(status.Convert(err))
	}
	return err
}

// send sends m. unsent says that m caused the error and that nothing of m was sent.
func (s *serverStream) send(m any) (unsent bool, err error) {
	c := &s.call
	f := &s.sendFrame
	f.Msg, f.HasMsg = call.MessageOf(m, c.codec), true
	if err := c.checkSend(&f.Msg); err != nil {
		f.Msg = message.Message{}
		return true, err
	}
	if err := c.Err(); err != nil {
		return false, call.ContextStatus(err)
	}
	if err := c.stats.Prepare(&f.Msg); err != nil {
		f.Msg = message.Message{}
		return true, c.brokenError(err)
	}
	f.Header = s.header()
	header := f.Header
	err = s.transportStream.Send(f)
	if _, unsent = err.(*message.SendError); unsent {
		c.restoreHeader(header)
	} else {
		s.headerOut = true
	}
	sent := f.Msg
	f.Msg, f.Header = message.Message{}, nil
	if err != nil {
		return unsent, c.brokenError(err)
	}
	c.stats.Header(header)
	c.stats.Sent(m, &sent)
	return false, nil
}

// RecvMsg implements grpc.ServerStream.
func (s *serverStream) RecvMsg(m any) error {
	s.recvYield.BeforeMessage(s.call.method.loop)
	err := s.receive(m, &s.recvFrame)
	if err != nil && err != io.EOF {
		s.call.finish(status.Convert(err))
	}
	return err
}
