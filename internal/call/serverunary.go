package call

import (
	"context"
	"errors"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
)

// runUnary runs the handler of a unary method, for a UnaryCall or a carried call.
func (c *serverCall) runUnary() {
	m := c.method
	if r := c.carried; r != nil {
		reply, err := m.unary.Handler(m.impl, c.context(), r.readRequest, c.conn.server.unary)
		switch {
		case err != nil:
		case m.guard != nil:
			err = c.guardedReply(reply)
		default:
			err = r.reply(reply)
		}
		if err != nil {
			c.finish(statusOf(err))
		}
		return
	}
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

// A Guard is the implementation of a service whose panics must not end the process. It recovers
// those of its handlers itself. A panic of the codec that encodes a unary reply is passed to
// Panicked, which returns the error of the call.
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
	if r := c.carried; r != nil {
		return r.reply(v)
	}
	return c.reply(v)
}

// readRequest decodes the request into dst. Generated code calls it.
func (c *serverCall) readRequest(dst any) error {
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
	var send *link.SendError
	if errors.As(err, &send) {
		// The request cannot be encoded: the caller gets this error.
		c.unary.Abort(send)
		return contextStatus(context.Canceled)
	}
	err = c.brokenError(err)
	c.finish(status.Convert(err))
	return err
}

// reply ends the call with v. If it returns an error, the call has not ended. As in
// carried.reply, a stats handler learns of v before the caller gets the end.
func (c *serverCall) reply(v any) error {
	codec := c.codec()
	msg := messageOf(v, codec)
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
	c.mu.Lock()
	header := c.headerBeforeMessage()
	end, first := c.claimEnd(nil)
	if first && c.stats == nil { // with stats, the context ends after the report
		after = c.endContext(context.Canceled)
	}
	c.mu.Unlock()
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
	if c.stats == nil {
		if err := c.unary.Send(header, &msg, &end); err != nil {
			return c.brokenError(err)
		}
	} else {
		if err := c.unary.Send(header, &msg, nil); err != nil {
			return c.brokenError(err)
		}
		unsent = nil
		defer c.cancel(context.Canceled)
		c.stats.header(header)
		c.stats.sent(v, &msg)
		c.stats.trailer(end.Trailer)
		_ = c.unary.Send(nil, nil, &end)
	}
	ended = true
	return nil
}

// reopen takes back the end and the header of a reply that could not be sent.
func (c *serverCall) reopen(header metadata.MD) {
	c.mu.Lock()
	c.finished = false
	c.mu.Unlock()
	c.restoreHeader(header)
}
