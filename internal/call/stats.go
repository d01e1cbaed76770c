package call

import (
	"context"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
)

// JoinStats returns one handler that calls the given ones in order, or nil if there are none.
func JoinStats(all []stats.Handler) stats.Handler {
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

// Stats reports one call, or one attempt of a client's call, to a stats handler. A nil
// *Stats reports nothing.
type Stats struct {
	Ctx      context.Context // tagged by the handler
	Begin    time.Time
	Encoding string // compressor of requests
	Outcome  error  // on the server: the error of the status that was sent
	SkipSent bool   // on the client: the next message was already reported

	handler   stats.Handler
	client    bool
	headerOut bool // on the client: OutHeader was reported
}

// NewStats returns the reports of a call with the context ctx, which h tags.
func NewStats(ctx context.Context, h stats.Handler, client bool, tag *stats.RPCTagInfo) *Stats {
	begin := time.Now()
	return &Stats{Ctx: h.TagRPC(ctx, tag), Begin: begin, handler: h, client: client}
}

// Report reports an event.
func (s *Stats) Report(e stats.RPCStats) { s.handler.HandleRPC(s.Ctx, e) }

// Prepare makes the size of m known before m is sent. The error is a *message.SendError.
func (s *Stats) Prepare(m *message.Message) error {
	if s == nil {
		return nil
	}
	return MakeSizeKnown(m)
}

// Sent reports the message v, which was sent as m.
func (s *Stats) Sent(v any, m *message.Message) {
	switch {
	case s == nil:
	case s.SkipSent:
		s.SkipSent = false
	default:
		n, _ := m.Size() // not the size of v, which the user may have changed before it is sent again
		s.Report(&stats.OutPayload{Client: s.client, Payload: v, Length: n, CompressedLength: n, WireLength: n + link.MessageOverhead, SentTime: time.Now()})
	}
}

// Received reports a received message. n is the length of its encoding in bytes, 0 if it was not
// encoded.
func (s *Stats) Received(v any, c message.Codec, n int) {
	if s != nil {
		if n == 0 {
			m := MessageOf(v, c)
			n, _ = m.Size()
		}
		s.Report(&stats.InPayload{Client: s.client, Payload: v, Length: n, CompressedLength: n, WireLength: n + link.MessageOverhead, RecvTime: time.Now()})
	}
}

// End reports the end of the call or attempt.
func (s *Stats) End(err error, trailer metadata.MD) {
	if s != nil {
		s.Report(&stats.End{Client: s.client, BeginTime: s.Begin, EndTime: time.Now(), Trailer: trailer, Error: err})
	}
}

// Header reports the header that a server sent. A nil md means that none was sent.
func (s *Stats) Header(md metadata.MD) {
	if s != nil && md != nil {
		own := md.Copy()
		delete(own, link.EncodingKey)
		s.Report(&stats.OutHeader{Header: own, Compression: ReplyEncoding(md, s.Encoding)})
	}
}

// Trailer reports the trailer that a server sent.
func (s *Stats) Trailer(md metadata.MD) {
	if s != nil {
		s.Report(&stats.OutTrailer{Trailer: md.Copy()})
	}
}

// OutHeader reports that the request's header was sent. It does so once, even if a unary call is
// made again as a stream.
func (s *Stats) OutHeader(o *link.CallHeader, p *link.Peer) {
	if s != nil && !s.headerOut {
		s.headerOut = true
		s.Encoding = o.Encoding
		s.Report(&stats.OutHeader{
			Client:      true,
			FullMethod:  o.Method,
			RemoteAddr:  p.Addr,
			LocalAddr:   p.LocalAddr,
			Compression: o.Encoding,
			Header:      s.sentHeader(o.UserAgent),
			Authority:   o.Authority,
		})
	}
}

// sentHeader returns the request's header as grpc-go reports it: the context's outgoing
// metadata and the user agent.
func (s *Stats) sentHeader(userAgent string) metadata.MD {
	md, _ := metadata.FromOutgoingContext(s.Ctx)
	if md == nil {
		md = make(metadata.MD, 1)
	}
	md["user-agent"] = []string{userAgent}
	return md
}

// InHeader reports the response's header.
func (s *Stats) InHeader(md metadata.MD, subtype string) {
	if s != nil {
		s.Report(&stats.InHeader{Client: true, Compression: ReplyEncoding(md, s.Encoding), Header: FullHeader(md, subtype)})
	}
}

// InTrailer reports the response's trailer.
func (s *Stats) InTrailer(md metadata.MD) {
	if s != nil {
		s.Report(&stats.InTrailer{Client: true, Trailer: md.Copy()})
	}
}
