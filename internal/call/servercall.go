package call

import (
	"context"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
)

// A serverCall is one call on the side of its handler. It is the handler's
// context too, and its grpc.ServerTransportStream.
type serverCall struct {
	callContext

	conn    *serverConn
	open    *link.Open
	method  *method
	refusal *status.Status // the method does not exist: end with this

	// One of the two carries the call.
	unary  *link.Call
	stream link.Stream

	next, prev *serverCall // guarded by conn.mu

	// Guarded by callContext.mu.
	header, trailer metadata.MD
	headerSent      bool
	finished        bool

	// headerMu is held while a header is sent by itself, so that no message
	// overtakes it.
	headerMu sync.Mutex

	stats *callStats // nil without a stats handler
}

func (c *serverCall) init(conn *serverConn, m *method, o *link.Open) {
	c.conn, c.method, c.open = conn, m, o
	c.deadline = o.Deadline
}

// context returns what the handler gets: the call itself, or what a stats
// handler made of it.
func (c *serverCall) context() context.Context {
	if c.stats != nil {
		return c.stats.ctx
	}
	return c
}

// codec returns how the call's messages are read and written.
func (c *serverCall) codec() link.Codec {
	if c.open.Shared {
		return codec.Shared()
	}
	return c.conn.server.codecOf(c.open.ContentSubtype)
}

// run runs the handler and ends the call. It is called on a worker or, for
// unary calls, on the goroutine of the caller.
func (c *serverCall) run() {
	returned := false
	defer func() {
		if !returned {
			// A panic goes on to end the process, or to reach the caller that
			// runs the handler; Goexit ends this goroutine alone.
			c.finish(status.New(codes.Internal, "the handler exited without returning"))
		}
		c.conn.remove(c)
	}()
	if h := c.conn.server.stats; h != nil {
		c.startStats(h)
	}
	if c.refusal != nil {
		c.finish(c.refusal)
	} else {
		c.beginStats()
		if c.method.unary != nil {
			c.runUnary()
		} else {
			c.runStream()
		}
		if c.stats != nil {
			c.stats.end(c.stats.outcome, nil)
		}
	}
	returned = true
}

// String names the context without looking into it, for those who print it.
func (c *serverCall) String() string { return "nearcall.Context(" + c.open.Method + ")" }

// Value implements [context.Context].
func (c *serverCall) Value(key any) any {
	switch key {
	case incomingKey:
		return c.incomingMetadata()
	case peerKey:
		return c.conn.peerOf()
	case streamKey:
		return c
	}
	return c.conn.ctx.Value(key)
}

// incomingMetadata returns what the caller sent, together with what gRPC adds.
func (c *serverCall) incomingMetadata() metadata.MD {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.incoming == nil {
		md := make(metadata.MD, len(c.open.Metadata)+3)
		for k, v := range c.open.Metadata {
			if k != "host" { // HTTP's name for the authority
				md[k] = v
			}
		}
		md[":authority"] = []string{c.open.Authority}
		md["content-type"] = []string{contentType(c.open.ContentSubtype)}
		md["user-agent"] = []string{c.open.UserAgent}
		c.incoming = md
	}
	return c.incoming
}

// Aborted implements [link.Callee]: the caller left, or the stream was aborted.
func (c *serverCall) Aborted(reason error) { c.cancel(contextError(reason)) }

// abort ends the call for both sides.
func (c *serverCall) abort(reason error) {
	if c.unary != nil {
		c.unary.Abort(reason)
		c.cancel(context.Canceled)
		return
	}
	c.stream.Abort(reason)
	c.cancel(context.Canceled)
}

// Method implements grpc.ServerTransportStream.
func (c *serverCall) Method() string { return c.open.Method }

// emptyHeader is the header of most calls. Nobody writes to a header that was
// sent, so that it can be shared.
var emptyHeader = metadata.MD{}

var errHeaderSent = status.Error(codes.Internal, "transport: SendHeader called multiple times")

// SetHeader implements grpc.ServerTransportStream.
func (c *serverCall) SetHeader(md metadata.MD) error {
	if md.Len() == 0 {
		return nil
	}
	if err := validate(md); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.headerSent || c.finished {
		return errHeaderSent
	}
	c.header = join(c.header, md)
	return nil
}

// SendHeader implements grpc.ServerTransportStream.
func (c *serverCall) SendHeader(md metadata.MD) error {
	if err := validate(md); err != nil {
		return err
	}
	if err := c.Err(); err != nil {
		return contextStatus(err)
	}
	c.headerMu.Lock()
	defer c.headerMu.Unlock()
	c.mu.Lock()
	if c.headerSent || c.finished {
		c.mu.Unlock()
		return errHeaderSent
	}
	c.header = join(c.header, md)
	h := c.takeHeader()
	c.mu.Unlock()
	var err error
	if c.unary != nil {
		err = c.unary.SendHeader(h)
	} else {
		err = c.stream.Send(&link.Frame{Header: h})
	}
	if err != nil {
		return c.brokenError(err)
	}
	c.stats.header(h)
	return nil
}

// takeHeader returns the header to be sent, never nil. mu is held.
func (c *serverCall) takeHeader() metadata.MD {
	h := c.header
	if h == nil {
		h = emptyHeader
	}
	c.headerSent, c.header = true, nil
	return h
}

// headerBefore returns the header when it must go out with what is sent next:
// before the first message always, before the end when something was set.
func (c *serverCall) headerBefore(end bool) metadata.MD {
	c.headerMu.Lock()
	defer c.headerMu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.headerSent || end && len(c.header) == 0 {
		return nil
	}
	return c.takeHeader()
}

// keepHeader takes back a header that was not sent, because the message that
// it was to go with could not be.
func (c *serverCall) keepHeader(h metadata.MD) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.headerSent = false
	if len(h) > 0 {
		c.header = h
	}
}

// SetTrailer implements grpc.ServerTransportStream.
func (c *serverCall) SetTrailer(md metadata.MD) error {
	if md.Len() == 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.finished {
		return errHeaderSent
	}
	c.trailer = join(c.trailer, md)
	return nil
}

// brokenError is what a handler gets when something could not be sent or
// received.
func (c *serverCall) brokenError(err error) error {
	switch err.(type) {
	case nil:
		return nil
	case *link.SendError, *link.RecvError:
		return linkStatus(err)
	}
	// The call is over. Whatever ended it, for its handler it was cancelled.
	if ctxErr := c.Err(); ctxErr != nil {
		err = ctxErr
	}
	return contextStatus(err)
}

// finish ends the call with st, nil for OK. Only the first call counts.
func (c *serverCall) finish(st *status.Status) {
	c.mu.Lock()
	if c.finished {
		c.mu.Unlock()
		return
	}
	c.finished = true
	trailer := c.trailer
	if err := validTrailer(trailer); err != nil {
		st, trailer = status.New(codes.Internal, "the handler's trailer is malformed: "+err.Error()), nil
	}
	if st != nil && c.stats != nil {
		c.stats.outcome = st.Err()
	}
	c.mu.Unlock()
	h := c.headerBefore(true)
	c.stats.header(h)
	c.stats.trailer(trailer)
	st = asSent(st)
	if c.unary != nil {
		if h != nil {
			_ = c.unary.SendHeader(h)
		}
		_ = c.unary.Finish(st, trailer)
	} else {
		_ = c.stream.Send(&link.Frame{Header: h, End: &link.End{Status: st, Trailer: trailer}})
	}
	c.cancel(context.Canceled)
}

// maxRecv and maxSend are the server's limits, in bytes.
func (c *serverCall) maxRecv() int { return c.conn.server.cfg.MaxRecv }
func (c *serverCall) maxSend() int { return c.conn.server.cfg.MaxSend }

// checkSend refuses a message that is over the server's limit.
func (c *serverCall) checkSend(m *link.Message) error { return checkSize(m, c.maxSend()) }

// checkSize refuses m when it is larger than limit, which is mostly so large
// that no size needs to be computed.
func checkSize(m *link.Message, limit int) error {
	if limit >= noLimit {
		return nil
	}
	n, err := m.Size()
	if err != nil {
		return linkStatus(err)
	}
	if n > limit {
		return status.Errorf(codes.ResourceExhausted, "trying to send message larger than max (%d vs. %d)", n, limit)
	}
	return nil
}
