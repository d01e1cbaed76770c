package server

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/grpcinside"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/transport/inproc"
	"github.com/nearcall/nearcall/internal/wait"
)

// A serverCall is the server's side of one call. It is also the handler's context and
// its grpc.ServerTransportStream. It implements [context.Context].
type serverCall struct {
	callContext

	// Guarded by callContext.mu, except inline and onCaller, which are set before the handler runs.
	inline     bool // the caller's goroutine may run the handler, or its first part
	onCaller   bool // the handler's goroutine is its caller's
	headerSent bool
	finished   bool

	// Guarded by the scheduler's mu.
	index int32       // in conn.admission.running
	next  *serverCall // in workers.queue

	conn   *serverConn
	open   *link.CallHeader
	method *method
	codec  message.Codec // of the messages
	stats  *call.Stats   // nil without a stats handler

	// Exactly one of the two is set.
	unary   *inproc.Call
	carried *carried
}

// init sets up c.
func (c *serverCall) init(conn *serverConn, m *method, o *link.CallHeader) {
	c.conn, c.method, c.open, c.codec = conn, m, o, conn.server.codecOf(m, o)
}

// checkHead returns an error if the method's name or the profile has a string that is not valid
// in HTTP/2, so that no handler sees one. The strings were checked when the method and the
// profile were made. The decoder has already refused such calls from other processes.
func (c *serverCall) checkHead() error {
	what := c.open.Invalid()
	if c.method.invalid {
		what = "method"
	}
	if what == "" {
		return nil
	}
	return broken("the " + what + " has control characters")
}

// String returns a name for printing. Without it fmt would read the fields, without mu.
func (c *serverCall) String() string { return "nearcall.Context(" + c.open.Method + ")" }

func (c *serverCall) Value(key any) any {
	switch key {
	case grpcinside.IncomingKey:
		return c.incomingMetadata()
	case grpcinside.PeerKey:
		return &c.conn.peerInfo
	case grpcinside.StreamKey:
		return c
	case call.EncoderKey{}:
		return c
	case connKey{}:
		return c.conn
	case wait.LoopKey:
		if c.method.loop == nil {
			return nil
		}
		return c.method.loop
	}
	if grpcinside.IsConnectionKey(key) {
		return link.Connection{Peer: c.conn.peer}
	}
	if !grpcinside.ContextKeys.Found() {
		if v := grpcinside.HandlerContext(c.incomingMetadata(), &c.conn.peerInfo, c).Value(key); v != nil {
			return v
		}
	}
	return c.conn.ctx.Value(key)
}

// incomingMetadata returns the caller's metadata with the headers that gRPC adds.
func (c *serverCall) incomingMetadata() metadata.MD {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.detailsLocked()
	if d.incoming == nil {
		sent := c.open.Sent()
		md := make(metadata.MD, len(sent)+4)
		for k, v := range sent {
			if k != "host" && !call.Reserved(k) { // host is HTTP/1's name for the authority
				md[k] = v
			}
		}
		md[":authority"] = []string{c.open.Authority}
		md["content-type"] = []string{c.open.ContentType()}
		md["user-agent"] = []string{c.open.UserAgent}
		if c.open.Accept != "" {
			md[acceptKey] = append([]string{c.open.Accept}, md[acceptKey]...)
		}
		d.incoming = md
	}
	return d.incoming
}

// Call implements [inproc.Callee].
func (c *serverCall) Call() *inproc.Call { return c.unary }

// Aborted implements [inproc.Callee]. It is also called when the stream was aborted. It ends the
// handler's context. If the call has no deadline, the context's error is Canceled, even if the
// caller's reason is DeadlineExceeded.
func (c *serverCall) Aborted(reason error) {
	err := call.EndOfContext(reason)
	if c.open.Deadline.IsZero() {
		err = context.Canceled
	}
	c.cancel(err)
}

// abort ends the call for reason, on both sides.
func (c *serverCall) abort(reason error) {
	if c.unary != nil {
		c.unary.Abort(reason)
		c.cancel(context.Canceled)
		return
	}
	c.carried.abort(reason)
	c.cancel(context.Canceled)
}

// Method implements grpc.ServerTransportStream.
func (c *serverCall) Method() string { return c.open.Method }

// emptyHeader is the header of most calls. They share it, because a header is immutable once it
// was sent.
var emptyHeader = metadata.MD{}

var errHeaderSent = status.Error(codes.Internal, "transport: SendHeader called multiple times")

// SetHeader implements grpc.ServerTransportStream.
func (c *serverCall) SetHeader(md metadata.MD) error {
	if md.Len() == 0 {
		return nil
	}
	if err := call.Validate(md); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.headerSent || c.finished {
		return errHeaderSent
	}
	d := c.detailsLocked()
	d.header = call.Join(d.header, md)
	return nil
}

// SendHeader implements grpc.ServerTransportStream.
func (c *serverCall) SendHeader(md metadata.MD) error {
	if err := call.Validate(md); err != nil {
		return err
	}
	if err := c.Err(); err != nil {
		return call.ContextStatus(err)
	}
	if r := c.carried; r != nil {
		if !r.use() {
			return errHeaderSent
		}
		defer r.unuse()
		r.headerMu.Lock()
		defer r.headerMu.Unlock()
	}
	c.mu.Lock()
	if c.headerSent || c.finished {
		c.mu.Unlock()
		return errHeaderSent
	}
	d := c.detailsLocked()
	d.header = call.Join(d.header, md)
	h := c.popHeaderLocked()
	var err error
	if c.carried == nil {
		err = c.unary.Send(h, nil, nil) // does not wait; mu is held so that no reply overtakes it
	}
	c.mu.Unlock()
	if c.carried != nil {
		err = c.transmit(h, nil, nil)
	}
	if err != nil {
		return c.brokenError(err)
	}
	c.stats.Header(h)
	return nil
}

// popHeaderLocked returns the header for sending, never nil, and marks it as sent.
func (c *serverCall) popHeaderLocked() metadata.MD {
	c.headerSent = true
	h := emptyHeader
	if c.more == nil {
		return h
	}
	if c.more.header != nil {
		h, c.more.header = c.more.header, nil
	}
	if c.more.encoding != "" {
		h = call.Join(nil, h) // drops the EncodingKey of a header that restoreHeader has taken back
		if c.more.encoding != message.Compressor(c.open.Encoding) {
			h[link.EncodingKey] = []string{c.more.encoding}
		}
	}
	return h
}

// headerBeforeMessageLocked returns the header to send with the next message, or nil if it was
// sent before.
func (c *serverCall) headerBeforeMessageLocked() metadata.MD {
	if c.headerSent {
		return nil
	}
	return c.popHeaderLocked()
}

// headerBeforeEndLocked returns the header to send with the end, or nil if it was sent before or
// the handler has not set any metadata.
func (c *serverCall) headerBeforeEndLocked() metadata.MD {
	if c.headerSent || c.more == nil || len(c.more.header) == 0 {
		return nil
	}
	return c.popHeaderLocked()
}

// restoreHeader takes back a header that was not sent because its message could not be
// sent. A nil h does nothing.
func (c *serverCall) restoreHeader(h metadata.MD) {
	if h == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.headerSent = false
	if len(h) > 0 {
		c.detailsLocked().header = h
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
	d := c.detailsLocked()
	d.trailer = call.Join(d.trailer, md)
	return nil
}

// brokenError returns the handler's error for an error of sending or receiving.
func (c *serverCall) brokenError(err error) error {
	switch e := err.(type) {
	case nil:
		return nil
	case *message.SendError:
		return call.LinkStatus(err)
	case *message.RecvError:
		if e.Err == nil || e.Err != c.Err() { // otherwise the call has ended, and that has ended the decoding
			return call.LinkStatus(err)
		}
	}
	// The call has ended. The handler gets the error of its context for any reason.
	if ctxErr := c.Err(); ctxErr != nil {
		err = ctxErr
	}
	return call.ContextStatus(err)
}

// finish ends the call with st, nil for OK, and without a reply. Only the first finish has an
// effect.
func (c *serverCall) finish(st *status.Status) {
	c.lockHeader()
	end, first := c.claimEndLocked(st)
	header := c.headerBeforeEndLocked()
	c.unlockHeader()
	if first {
		c.stats.Header(header)
		c.stats.Trailer(end.Trailer)
		_ = c.transmit(header, nil, &end)
		c.cancel(context.Canceled)
	}
}

// lockHeader locks mu. It first waits until a header that is being sent is ahead of what is sent
// next.
func (c *serverCall) lockHeader() {
	if c.carried != nil {
		c.carried.headerMu.Lock()
	}
	c.mu.Lock()
}

func (c *serverCall) unlockHeader() {
	c.mu.Unlock()
	if c.carried != nil {
		c.carried.headerMu.Unlock()
	}
}

// claimEndLocked claims the right to end the call and returns the end to send. ok is false if
// the end was claimed before.
func (c *serverCall) claimEndLocked(st *status.Status) (e link.End, ok bool) {
	if c.finished {
		return e, false
	}
	c.finished = true
	if st != nil && c.stats != nil {
		c.stats.Outcome = st.Err()
	}
	if c.more != nil && c.more.trailer != nil {
		if err := validTrailer(c.more.trailer); err != nil {
			// Only the caller sees the error: in grpc-go the client detects it.
			st = status.New(codes.Internal, err.Error())
		} else {
			e.Trailer = c.more.trailer
		}
		if _, own := e.Trailer[link.DetailsKey]; own && len(st.Proto().GetDetails()) > 0 {
			delete(e.Trailer, link.DetailsKey) // the details of st win
		}
	}
	e.Status = asSent(st)
	return e, true
}

// maxRecv and maxSend are the server's limits, in bytes.
func (c *serverCall) maxRecv() int { return c.conn.server.opts.MaxRecv }
func (c *serverCall) maxSend() int { return c.conn.server.opts.MaxSend }

// checkSend returns an error if m exceeds the server's limit.
func (c *serverCall) checkSend(m *message.Message) error {
	if c.maxSend() >= call.NoLimit {
		return nil
	}
	return call.CheckSize(m, c.maxSend(), c.compressor(), c.conn.peer)
}

// validTrailer checks a trailer by HTTP/2's rules, with the error texts of grpc-go's client. In
// grpc-go the server sends trailers unchecked, and the client refuses invalid ones.
func validTrailer(md metadata.MD) error {
	for k, vals := range md {
		if !link.ValidKey(k) {
			return fmt.Errorf("invalid header field name %q", k)
		}
		if strings.HasSuffix(k, "-bin") {
			continue
		}
		for _, v := range vals {
			if !link.ValidText(v) {
				return fmt.Errorf("invalid header field value for %q", k)
			}
		}
	}
	return nil
}

// Encodes implements [call.Encoder].
func (c *serverCall) Encodes() (message.Codec, string) {
	if c.conn.peer.Local {
		return c.codec, ""
	}
	return c.codec, c.compressor()
}

// compressor returns the name of the compressor of replies, "" or "identity" for none.
func (c *serverCall) compressor() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.more != nil && c.more.encoding != "" {
		return c.more.encoding
	}
	return c.open.Encoding
}

// acceptKey is the header in which a client lists the compressors that replies may use.
const acceptKey = "grpc-accept-encoding"

// installed reports whether the server can decompress requests compressed with name.
func installed(name string) bool {
	return message.Compressor(name) == "" || encoding.GetCompressor(name) != nil
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
	r.transportStream, r.call.carried = link.StreamFor(m.loop, s), r
	return r
}

// statusOf returns the status for a handler's error: the error's own, that of a context
// error, or Unknown. It is nil for nil.
func statusOf(err error) *status.Status {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok {
		st = status.FromContextError(err)
	}
	return st
}

// asSent returns the status that the peer gets for st. It is nil for OK, and its message is valid
// UTF-8. If st's message is not, the details of st are lost, because protobuf cannot encode them
// together with that message.
func asSent(st *status.Status) *status.Status {
	if st == nil || st.Code() == codes.OK {
		return nil
	}
	if msg := st.Message(); !utf8.ValidString(msg) {
		return status.New(st.Code(), string([]rune(msg))) // each invalid byte becomes U+FFFD
	}
	return st
}

// broken is an error that says which of HTTP/2's rules a call violates.
type broken string

func (b broken) Error() string { return string(b) }
func (broken) Unwrap() error   { return link.ErrBroken }

// refused returns an error for a call that is refused without being processed. It is not a status
// error: the peer gets only its text, and makes a status of it.
func refused(format string, args ...any) error {
	return link.Unprocessed{Err: fmt.Errorf(format, args...)}
}
