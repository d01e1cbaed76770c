package call

import (
	"context"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"

	"github.com/nearcall/nearcall/internal/link"
)

// joinStats returns one handler that calls the given ones in order, or nil if there are none.
func joinStats(all []stats.Handler) stats.Handler {
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return statsHandlers(all)
}

type statsHandlers []stats.Handler

func (hs statsHandlers) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	for _, h := range hs {
		ctx = h.TagRPC(ctx, info)
	}
	return ctx
}

func (hs statsHandlers) HandleRPC(ctx context.Context, s stats.RPCStats) {
	for _, h := range hs {
		h.HandleRPC(ctx, s)
	}
}

func (hs statsHandlers) TagConn(ctx context.Context, info *stats.ConnTagInfo) context.Context {
	for _, h := range hs {
		ctx = h.TagConn(ctx, info)
	}
	return ctx
}

func (hs statsHandlers) HandleConn(ctx context.Context, s stats.ConnStats) {
	for _, h := range hs {
		h.HandleConn(ctx, s)
	}
}

// callStats reports one call, or one attempt of a client's call, to a stats handler. A nil
// *callStats reports nothing.
type callStats struct {
	handler stats.Handler
	ctx     context.Context // tagged by handler
	client  bool
	begin   time.Time

	encoding  string // compressor of requests
	outcome   error  // on the server: the error of the status that was sent
	headerOut bool   // on the client: outHeader was reported
	skipSent  bool   // on the client: the next message was already reported
}

func (s *callStats) report(e stats.RPCStats) { s.handler.HandleRPC(s.ctx, e) }

// prepare makes the size of m known before m is sent. The error is a *link.SendError.
func (s *callStats) prepare(m *link.Message) error {
	if s == nil {
		return nil
	}
	return makeSizeKnown(m)
}

// sent reports the message v, which was sent as m.
func (s *callStats) sent(v any, m *link.Message) {
	switch {
	case s == nil:
	case s.skipSent:
		s.skipSent = false
	default:
		n, _ := m.Size() // not the size of v, which the user may have changed before it is sent again
		s.report(&stats.OutPayload{Client: s.client, Payload: v, Length: n, CompressedLength: n, WireLength: n + link.MessageOverhead, SentTime: time.Now()})
	}
}

// received reports a received message. n is the length of its encoding in bytes, 0 if it was not
// encoded.
func (s *callStats) received(v any, c link.Codec, n int) {
	if s != nil {
		if n == 0 {
			m := messageOf(v, c)
			n, _ = m.Size()
		}
		s.report(&stats.InPayload{Client: s.client, Payload: v, Length: n, CompressedLength: n, WireLength: n + link.MessageOverhead, RecvTime: time.Now()})
	}
}

// reportEnd reports the end of the call or attempt.
func (s *callStats) reportEnd(err error, trailer metadata.MD) {
	if s != nil {
		s.report(&stats.End{Client: s.client, BeginTime: s.begin, EndTime: time.Now(), Trailer: trailer, Error: err})
	}
}

// startStats reports an incoming call to the server's stats handler.
func (c *serverCall) startStats(h stats.Handler) {
	ctx := h.TagRPC(c.context(), &stats.RPCTagInfo{FullMethodName: c.open.Method})
	c.derive(ctx)
	p := c.conn.peer
	c.stats = &callStats{handler: h, ctx: ctx, begin: time.Now(), encoding: c.open.Encoding}
	c.stats.report(&stats.InHeader{
		FullMethod:  c.open.Method,
		RemoteAddr:  p.Addr,
		LocalAddr:   p.LocalAddr,
		Compression: c.open.Encoding,
		Header:      c.incomingMetadata().Copy(),
	})
}

// beginStats reports that the call has a handler.
func (c *serverCall) beginStats() {
	if s := c.stats; s != nil {
		s.report(&stats.Begin{BeginTime: s.begin, IsClientStream: c.method.clientStreams(), IsServerStream: c.method.serverStreams()})
	}
}

// header reports the header that a server sent. A nil md means that none was sent.
func (s *callStats) header(md metadata.MD) {
	if s != nil && md != nil {
		own := md.Copy()
		delete(own, link.EncodingKey)
		s.report(&stats.OutHeader{Header: own, Compression: replyEncoding(md, s.encoding)})
	}
}

// trailer reports the trailer that a server sent.
func (s *callStats) trailer(md metadata.MD) {
	if s != nil {
		s.report(&stats.OutTrailer{Trailer: md.Copy()})
	}
}

// outHeader reports that the request's header was sent. It does so once, even if a unary call is
// made again as a stream.
func (s *callStats) outHeader(o *link.CallHeader, p *link.Peer) {
	if s != nil && !s.headerOut {
		s.headerOut = true
		s.encoding = o.Encoding
		s.report(&stats.OutHeader{
			Client:      true,
			FullMethod:  o.Method,
			RemoteAddr:  p.Addr,
			LocalAddr:   p.LocalAddr,
			Compression: o.Encoding,
			Header:      s.outgoing(o.UserAgent),
			Authority:   o.Authority,
		})
	}
}

// outgoing returns the request's header as grpc-go reports it: the context's outgoing
// metadata and the user agent.
func (s *callStats) outgoing(userAgent string) metadata.MD {
	md, _ := metadata.FromOutgoingContext(s.ctx)
	if md == nil {
		md = make(metadata.MD, 1)
	}
	md["user-agent"] = []string{userAgent}
	return md
}

// inHeader reports the response's header.
func (s *callStats) inHeader(md metadata.MD, subtype string) {
	if s != nil {
		s.report(&stats.InHeader{Client: true, Compression: replyEncoding(md, s.encoding), Header: fullHeader(md, subtype)})
	}
}

// inTrailer reports the response's trailer.
func (s *callStats) inTrailer(md metadata.MD) {
	if s != nil {
		s.report(&stats.InTrailer{Client: true, Trailer: md.Copy()})
	}
}
