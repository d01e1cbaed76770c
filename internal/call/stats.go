package call

import (
	"context"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"

	"github.com/nearcall/nearcall/internal/link"
)

// joinStats makes one handler of many, called in order; nil of none.
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

// callStats tells a stats handler of one call, on either side. A nil
// *callStats tells nobody.
type callStats struct {
	handler stats.Handler
	ctx     context.Context // tagged
	client  bool
	begin   time.Time

	encoding  string // that requests are compressed with
	outcome   error  // on the server: the error of the status that was sent
	headerOut bool   // the request's header was told of
	skipSent  bool   // so was the message that is sent next
}

func (s *callStats) report(e stats.RPCStats) { s.handler.HandleRPC(s.ctx, e) }

// size returns the encoded size of v, which in process nothing else computes.
func size(v any, c link.Codec) int {
	m := messageOf(v, c)
	n, _ := m.Size()
	return n
}

// sent tells of a message that was sent.
func (s *callStats) sent(v any, c link.Codec) {
	if s != nil && s.skipSent {
		s.skipSent = false
		return
	}
	if s != nil {
		n := size(v, c)
		s.report(&stats.OutPayload{Client: s.client, Payload: v, Length: n, CompressedLength: n, WireLength: n + link.MessageOverhead, SentTime: time.Now()})
	}
}

// resent tells of a message that was sent before, with another attempt.
func (s *callStats) resent(st *step) {
	if s == nil {
		return
	}
	n, _ := st.msg.Size() // not of st.value, which the user may have changed
	s.report(&stats.OutPayload{Client: true, Payload: st.value, Length: n, CompressedLength: n, WireLength: n + link.MessageOverhead, SentTime: time.Now()})
}

// received tells of a message that was received.
func (s *callStats) received(v any, c link.Codec) {
	if s != nil {
		n := size(v, c)
		s.report(&stats.InPayload{Client: s.client, Payload: v, Length: n, CompressedLength: n, WireLength: n + link.MessageOverhead, RecvTime: time.Now()})
	}
}

// end tells that the call is over.
func (s *callStats) end(err error, trailer metadata.MD) {
	if s != nil {
		s.report(&stats.End{Client: s.client, BeginTime: s.begin, EndTime: time.Now(), Trailer: trailer, Error: err})
	}
}

// startStats tells the server's stats handler that a call came in.
func (c *serverCall) startStats(h stats.Handler) {
	ctx := h.TagRPC(c.labelled(), &stats.RPCTagInfo{FullMethodName: c.open.Method})
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

// beginStats tells that a handler was found.
func (c *serverCall) beginStats() {
	if s := c.stats; s != nil {
		s.report(&stats.Begin{BeginTime: s.begin, IsClientStream: c.method.clientStreams(), IsServerStream: c.method.serverStreams()})
	}
}

// header and trailer tell of what a server sent; nothing when md is nil.
func (s *callStats) header(md metadata.MD) {
	if s != nil && md != nil {
		own := md.Copy()
		delete(own, link.EncodingKey)
		s.report(&stats.OutHeader{Header: own, Compression: replyEncoding(md, s.encoding)})
	}
}

func (s *callStats) trailer(md metadata.MD) {
	if s != nil {
		s.report(&stats.OutTrailer{Trailer: md.Copy()})
	}
}

// outHeader tells that the request's header was sent: once, also when a call
// turns out to need a stream.
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

// outgoing returns what grpc-go shows of a request's header: what is in the context,
// and the user agent.
func (s *callStats) outgoing(userAgent string) metadata.MD {
	md, _ := metadata.FromOutgoingContext(s.ctx)
	if md == nil {
		md = make(metadata.MD, 1)
	}
	md["user-agent"] = []string{userAgent}
	return md
}

// inHeader and inTrailer tell of the response's header and trailer.
func (s *callStats) inHeader(md metadata.MD, subtype string) {
	if s != nil {
		s.report(&stats.InHeader{Client: true, Compression: replyEncoding(md, s.encoding), Header: fullHeader(md, subtype)})
	}
}

func (s *callStats) inTrailer(md metadata.MD) {
	if s != nil {
		s.report(&stats.InTrailer{Client: true, Trailer: md.Copy()})
	}
}
