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

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
)

// A serverStream is the server's side of a call of a streaming method. It is the handler's
// grpc.ServerStream.
type serverStream struct {
	carried

	// Used only by the goroutine that sends.
	sendFrame link.Frame
	sendYield yielder
	sendsOn   bool // a message that cannot be sent does not end the call
	headerOut bool // the header was sent; can be false after SendHeader

	// Used only by the goroutine that receives.
	recvFrame link.Frame
	recvYield yielder
}

// run runs the handler.
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

// header returns the header to send with the next message, or nil if it was sent before.
func (s *serverStream) header() metadata.MD {
	if s.headerOut {
		return nil
	}
	s.call.lockHeader()
	defer s.call.unlockHeader()
	return s.call.headerBeforeMessage()
}

func (s *serverStream) Context() context.Context        { return s.call.context() }
func (s *serverStream) SetHeader(md metadata.MD) error  { return s.call.SetHeader(md) }
func (s *serverStream) SendHeader(md metadata.MD) error { return s.call.SendHeader(md) }

var logger = grpclog.Component("nearcall")

// SetTrailer implements grpc.ServerStream. As in grpc-go, it logs invalid metadata and still
// accepts it, because it cannot return an error.
func (s *serverStream) SetTrailer(md metadata.MD) {
	if err := validate(md); err != nil {
		logger.Errorf("stream: failed to validate md when setting trailer, err: %v", err)
	}
	_ = s.call.SetTrailer(md)
}

// SendMsg implements grpc.ServerStream. As in grpc-go, an error of SendMsg ends the call for the
// caller.
func (s *serverStream) SendMsg(m any) error {
	s.sendYield.beforeMessage(s.call.method.loop)
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
	f.Msg, f.HasMsg = messageOf(m, s.codec), true
	if err := c.checkSend(&f.Msg); err != nil {
		f.Msg = link.Message{}
		return true, err
	}
	if err := c.Err(); err != nil {
		return false, contextStatus(err)
	}
	if err := c.stats.prepare(&f.Msg); err != nil {
		f.Msg = link.Message{}
		return true, c.brokenError(err)
	}
	f.Header = s.header()
	header := f.Header
	err = s.transportStream.Send(f)
	if _, unsent = err.(*link.SendError); unsent {
		c.restoreHeader(header)
	} else {
		s.headerOut = true
	}
	sent := f.Msg
	f.Msg, f.Header = link.Message{}, nil
	if err != nil {
		return unsent, c.brokenError(err)
	}
	c.stats.header(header)
	c.stats.sent(m, &sent)
	return false, nil
}

// RecvMsg implements grpc.ServerStream.
func (s *serverStream) RecvMsg(m any) error {
	s.recvYield.beforeMessage(s.call.method.loop)
	err := s.receive(m, &s.recvFrame)
	if err != nil && err != io.EOF {
		s.call.finish(status.Convert(err))
	}
	return err
}

// A yielder makes a loop's task yield to other tasks now and then while it sends or receives.
// With a fast peer a task never waits. It must not starve the other tasks.
type yielder struct{ messages uint8 }

// yieldEvery is the number of messages after which a task yields.
const yieldEvery = 32

// beforeMessage is called before each message is sent or received. w is the task's loop,
// nil for goroutines.
func (t *yielder) beforeMessage(w wait.Waiter) {
	if w == nil {
		return
	}
	if t.messages++; t.messages%yieldEvery == 0 {
		wait.Yield(w)
	}
}

// A carried is the server's side of a call over a [link.Stream]. For a unary method it is the
// whole state of a call above the stream. Only it stays in memory if the handler keeps its
// context. For a streaming method it is part of a serverStream.
//
// Invariant: the goroutine that runs the call uses the transport stream until it calls leave. Others use
// it between use and unuse. Once the transport stream is freed, nobody uses it.
type carried struct {
	call   serverCall
	stream *serverStream // nil for a unary method
	codec  link.Codec

	// headerMu is held while a header is sent without a message, so that no message overtakes it.
	headerMu sync.Mutex
	end      link.End // how the call was ended

	// Guarded by call.mu.
	transportStream link.Stream // nil once it was freed
	uses            int         // how many other goroutines use transportStream
	left            bool        // the goroutine that ran the call has called leave

	// Used only by the goroutine that receives.
	recvOnce bool // a message was received
	recvEnd  bool // the caller sends no more
}

// newCarried returns a call of m that s carries.
func newCarried(s link.Stream, c *serverConn, m *method, o *link.CallHeader) *carried {
	var r *carried
	if m.stream != nil {
		stream := new(serverStream)
		r = &stream.carried
		r.stream = stream
	} else {
		r = new(carried)
	}
	r.call.init(c, m, o)
	r.transportStream, r.call.carried = s, r
	return r
}

// use reports whether the transport stream may be used until unuse is called.
func (r *carried) use() bool {
	r.call.mu.Lock()
	defer r.call.mu.Unlock()
	if r.left {
		return false
	}
	r.uses++
	return true
}

func (r *carried) unuse() {
	r.call.mu.Lock()
	r.uses--
	r.freeUnused()
}

// leave records that the goroutine that has run the call no longer uses the transport stream. The call has
// ended.
func (r *carried) leave() {
	r.call.mu.Lock()
	r.left = true
	r.freeUnused()
}

// freeUnused frees the transport stream if nobody uses it. Called with call.mu held, which it releases.
func (r *carried) freeUnused() {
	if !r.left || r.uses > 0 {
		r.call.mu.Unlock()
		return
	}
	f, ok := r.transportStream.(link.Freer)
	r.transportStream = nil
	r.call.mu.Unlock()
	if ok {
		f.Free()
	}
}

// abort ends the call for reason, on both sides, if it has not ended.
func (r *carried) abort(reason error) {
	if r.use() {
		r.transportStream.Abort(reason)
		r.unuse()
	}
}

// readRequest is readRequest of serverCall. It fails once the handler has returned.
func (r *carried) readRequest(m any) error {
	if !r.use() {
		return contextStatus(context.Canceled)
	}
	defer r.unuse() // deferred, because the codec may panic
	f := frames.Get().(*link.Frame)
	err := r.receive(m, f)
	freeFrame(f)
	if err != nil && err != io.EOF {
		r.call.finish(status.Convert(err))
	}
	return err
}

// receive receives a message into m, by means of f. If the method has one request, receive also
// receives the end that must follow.
func (r *carried) receive(m any, f *link.Frame) error {
	c := &r.call
	err := r.next(m, f)
	if err == io.EOF && !c.method.clientStreams() && !r.recvOnce {
		return status.Error(codes.Internal, "cardinality violation: received no request message from non-client-streaming RPC")
	}
	if err != nil {
		return err
	}
	r.recvOnce = true
	c.stats.received(m, r.codec, f.Size)
	if c.method.clientStreams() {
		return nil
	}
	switch err := r.next(m, f); err {
	case io.EOF:
		return nil
	case nil:
		return status.Error(codes.Internal, "cardinality violation: received multiple request messages for non-client-streaming RPC")
	default:
		return err
	}
}

// next receives one message into m, by means of f. It returns io.EOF after the last message.
func (r *carried) next(m any, f *link.Frame) error {
	c := &r.call
	if r.recvEnd {
		return io.EOF
	}
	if err := c.Err(); err != nil {
		r.transportStream.Abort(err)
	}
	f.Sink = link.Sink{Dst: wanted(m), Codec: codec.Until(r.codec, c), Limit: c.maxRecv()}
	if c.conn.peer.Local {
		f.Compressor = c.open.Encoding
	}
	for {
		err := r.transportStream.Recv(f)
		r.recvEnd = f.EndSend
		if err != nil {
			f.Dst = nil
			return c.brokenError(err)
		}
		if f.Got || r.recvEnd {
			f.Dst = nil
			if !f.Got {
				return io.EOF
			}
			return nil
		}
	}
}
