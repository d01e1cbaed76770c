package call

import (
	"context"
	"errors"
	"sync"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
)

// runUnary runs the handler of a unary method.
func (c *serverCall) runUnary() {
	m := c.method
	reply, err := m.unary.Handler(m.impl, c.context(), c.readRequest, c.conn.server.unary)
	switch {
	case err != nil:
	case m.guard != nil:
		err = c.guardedReply(reply)
	default:
		err = c.reply(reply)
	}
	if err != nil {
		c.finish(statusOf(err))
	}
}

// A Guard is a service's implementation. Its panics must not end the process. It recovers
// panics of its handlers itself. A panic of the codec that encodes a unary reply is passed
// to Panicked, which returns the error of the call.
type Guard interface {
	Panicked(method string, value any) error
}

// guardedReply ends the call with v as reply does.
func (c *serverCall) guardedReply(v any) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = c.method.guard.Panicked(c.method.name, value)
		}
	}()
	return c.reply(v)
}

// readRequest decodes the request into dst. Generated code calls it.
func (c *serverCall) readRequest(dst any) error {
	if c.carried != nil {
		return c.carried.readRequest(dst)
	}
	if err := c.Err(); err != nil {
		return contextStatus(err)
	}
	own := c.codec()
	to := link.Sink{Dst: dst, Codec: codec.Until(own, c), Limit: c.maxRecv(), Compressor: c.open.Encoding}
	err := c.unary.Take(&to)
	if err == nil {
		c.stats.received(dst, own, to.Size)
		return nil
	}
	if send, ok := errors.AsType[*link.SendError](err); ok {
		// The request cannot be encoded: the caller gets this error.
		c.unary.Abort(send)
		return contextStatus(context.Canceled)
	}
	err = c.brokenError(err)
	c.finish(status.Convert(err))
	return err
}

// reply ends the call with v. If it returns an error, the call has not ended. The end goes with v,
// unless a stats handler must learn of v before the caller gets the end.
func (c *serverCall) reply(v any) error {
	msg := messageOf(v, c.codec())
	if err := c.checkSend(&msg); err != nil {
		return err
	}
	if err := c.Err(); err != nil {
		return contextStatus(err)
	}
	if err := c.stats.prepare(&msg); err != nil {
		return c.brokenError(err)
	}
	var after ending
	c.lockHeader()
	header := c.headerBeforeMessage()
	end, first := c.claimEnd(nil)
	if first && c.stats == nil { // with stats, the context ends after the report
		after = c.endContext(context.Canceled)
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
		c.stats.header(header)
		c.stats.sent(v, &msg)
		c.stats.trailer(end.Trailer)
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
func (c *serverCall) transmit(header metadata.MD, reply *link.Message, end *link.End) error {
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
