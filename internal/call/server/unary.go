package server

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
)

// readRequest decodes the request into dst. Generated code calls it.
func (c *serverCall) readRequest(dst any) error {
	if c.carried != nil {
		return c.carried.readRequest(dst)
	}
	if err := c.Err(); err != nil {
		return call.ContextStatus(err)
	}
	to := message.Sink{Dst: dst, Codec: codec.Until(c.codec, c), Limit: c.maxRecv(), Compressor: c.open.Encoding}
	err := c.unary.Take(&to)
	if err == nil {
		c.stats.Received(dst, c.codec, to.Size)
		return nil
	}
	if send, ok := errors.AsType[*message.SendError](err); ok {
		// The request cannot be encoded: the caller gets this error.
		c.unary.Abort(send)
		return call.ContextStatus(context.Canceled)
	}
	err = c.brokenError(err)
	c.finish(status.Convert(err))
	return err
}

// reply ends the call with v. If it returns an error, the call has not ended. The end goes with v,
// unless a stats handler must learn of v before the caller gets the end.
func (c *serverCall) reply(v any) error {
	msg := call.MessageOf(v, c.codec)
	if err := c.checkSend(&msg); err != nil {
		return err
	}
	if err := c.Err(); err != nil {
		return call.ContextStatus(err)
	}
	if err := c.stats.Prepare(&msg); err != nil {
		return c.brokenError(err)
	}
	var after ending
	c.lockHeader()
	header := c.headerBeforeMessageLocked()
	end, first := c.claimEndLocked(nil)
	if first && c.stats == nil { // with stats, the context ends after the report
		after = c.endContextLocked(context.Canceled)
	}
	c.unlockHeader()
	if !first {
		return nil
	}
	unsent, ended := header, false
	defer func() { // also when a codec or a stats handler panics
		if !ended {
			c.reopen(unsent)
		}
		after.run()
	}()
	with := &end
	if c.stats != nil {
		with = nil
	}
	if err := c.transmit(header, &msg, with); err != nil {
		return c.brokenError(err)
	}
	unsent = nil
	if c.stats != nil {
		defer c.cancel(context.Canceled)
		c.stats.Header(header)
		c.stats.Sent(v, &msg)
		c.stats.Trailer(end.Trailer)
		_ = c.transmit(nil, nil, &end)
	}
	ended = true
	return nil
}

// frames is a pool of frames for unary methods, which need one only while they send or receive.
var frames = sync.Pool{New: func() any { return new(link.Frame) }}

func freeFrame(f *link.Frame) {
	*f = link.Frame{}
	frames.Put(f)
}

// transmit sends a header, the reply of a unary method, and the end, each unless it is nil. After a
// reply the end follows at once.
func (c *serverCall) transmit(header metadata.MD, reply *message.Message, end *link.End) error {
	r := c.carried
	if r == nil {
		return c.unary.Send(header, reply, end)
	}
	f := frames.Get().(*link.Frame)
	f.Header = header
	if reply != nil {
		f.Msg, f.HasMsg, f.More = *reply, true, end == nil
	}
	if end != nil {
		r.end = *end
		f.End = &r.end
	}
	err := r.transportStream.Send(f)
	freeFrame(f)
	return err
}

// reopen takes back the end and the header of a reply that could not be sent.
func (c *serverCall) reopen(header metadata.MD) {
	c.mu.Lock()
	c.finished = false
	c.mu.Unlock()
	c.restoreHeader(header)
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
	free := r.freeLocked()
	r.call.mu.Unlock()
	free.free()
}

// leave records that the goroutine that has run the call no longer uses the transport stream. The call has
// ended.
func (r *carried) leave() {
	r.call.mu.Lock()
	r.left = true
	free := r.freeLocked()
	r.call.mu.Unlock()
	free.free()
}

// freeLocked drops the transport stream if nobody uses it, and returns it to be freed.
func (r *carried) freeLocked() unused {
	if !r.left || r.uses > 0 {
		return unused{}
	}
	s := r.transportStream
	r.transportStream = nil
	return unused{s}
}

// unused is a transport stream that nobody uses, or none.
type unused struct{ stream link.Stream }

func (u unused) free() {
	if f, ok := u.stream.(link.Freer); ok {
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
		return call.ContextStatus(context.Canceled)
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
	c.stats.Received(m, c.codec, f.Size)
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
	f.Sink = message.Sink{Dst: call.Wanted(m), Codec: codec.Until(c.codec, c), Limit: c.maxRecv()}
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
