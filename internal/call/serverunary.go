package call

import (
	"context"
	"errors"

	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
)

// runUnary runs the handler of a unary method, over either carrier.
func (c *serverCall) runUnary() {
	var ss *serverStream
	var decode func(any) error
	if c.stream != nil {
		ss = &serverStream{call: c, codec: c.codec()}
		decode = ss.RecvMsg
	} else {
		decode = c.takeRequest
	}
	m := c.method
	reply, err := m.unary.Handler(m.impl, c.context(), decode, c.conn.server.unary)
	switch {
	case err != nil:
	case ss != nil:
		err = ss.SendMsg(reply)
	default:
		err = c.sendReply(reply)
	}
	c.finish(statusOf(err))
}

// takeRequest is what generated code calls to decode the request.
func (c *serverCall) takeRequest(dst any) error {
	if err := c.Err(); err != nil {
		return contextStatus(err)
	}
	codec := c.codec()
	err := c.unary.Take(&link.Sink{Dst: dst, Codec: codec, Limit: c.maxRecv()})
	if err == nil {
		c.stats.received(dst, codec)
		return nil
	}
	var send *link.SendError
	if errors.As(err, &send) {
		// The fault is the caller's, who gets it as its own error.
		c.unary.Abort(send)
		return contextStatus(context.Canceled)
	}
	err = c.brokenError(err)
	c.finish(status.Convert(err))
	return err
}

func (c *serverCall) sendReply(v any) error {
	codec := c.codec()
	msg := link.Live(v, codec)
	if err := c.checkSend(&msg); err != nil {
		return err
	}
	if err := c.Err(); err != nil {
		return contextStatus(err)
	}
	if err := c.unary.SendReply(&msg); err != nil {
		return c.brokenError(err)
	}
	// The caller looks at nothing before the end, so the header may come after
	// the reply: not at all, then, beside a reply that could not be encoded.
	if h := c.headerBefore(false); h != nil {
		_ = c.unary.SendHeader(h)
		c.stats.header(h)
	}
	c.stats.sent(v, codec)
	return nil
}
