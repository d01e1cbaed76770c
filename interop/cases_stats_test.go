package interop

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

type (
	rpcTag  struct{}
	connTag struct{}
)

// recorder is a stats handler. In grpc-go's client the reader reports headers and trailers
// as they arrive, so there is a list for each source: sent, messages received, and the rest
// received.
type recorder struct {
	mu          sync.Mutex
	client      bool
	out, in     []string
	payloads    []string
	all         []string
	first, last string
	conn        []string
	begin       time.Time
	ended       chan struct{}
	connEnded   chan struct{}
}

func newRecorder(client bool) *recorder {
	return &recorder{client: client, ended: make(chan struct{}, 100), connEnded: make(chan struct{}, 100)}
}

func (r *recorder) TagConn(ctx context.Context, i *stats.ConnTagInfo) context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conn = append(r.conn, fmt.Sprintf("TagConn remote %v local %v", i.RemoteAddr != nil, i.LocalAddr != nil))
	return context.WithValue(ctx, connTag{}, "conn")
}

func (r *recorder) HandleConn(ctx context.Context, s stats.ConnStats) {
	r.mu.Lock()
	r.conn = append(r.conn, fmt.Sprintf("%T client %v tag %v", s, s.IsClient(), ctx.Value(connTag{})))
	r.mu.Unlock()
	if _, ok := s.(*stats.ConnEnd); ok {
		r.connEnded <- struct{}{}
	}
}

func (r *recorder) TagRPC(ctx context.Context, i *stats.RPCTagInfo) context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	md, ok := metadata.FromIncomingContext(ctx)
	r.all = append(r.all, fmt.Sprintf("TagRPC %s failfast %v conn tag %v incoming %v %s", i.FullMethodName, i.FailFast, ctx.Value(connTag{}), ok, showMD(md)))
	return context.WithValue(ctx, rpcTag{}, "rpc")
}

func (r *recorder) HandleRPC(ctx context.Context, s stats.RPCStats) {
	r.mu.Lock()
	line := r.show(ctx, s)
	if line != "" {
		if r.first == "" {
			r.first = line
		}
		r.last = line
		r.all = append(r.all, line)
		switch s.(type) {
		case *stats.OutHeader, *stats.OutPayload, *stats.OutTrailer:
			r.out = append(r.out, line)
		case *stats.InHeader, *stats.InTrailer:
			r.in = append(r.in, line)
		case *stats.InPayload:
			r.payloads = append(r.payloads, line)
		}
	}
	r.mu.Unlock()
	if _, ok := s.(*stats.End); ok {
		r.ended <- struct{}{}
	}
}

// show formats an event. Of addresses, times and wire sizes of headers it shows only that
// they are set.
func (r *recorder) show(ctx context.Context, s stats.RPCStats) string {
	line := strings.TrimPrefix(fmt.Sprintf("%T", s), "*stats.")
	if s.IsClient() != r.client {
		line += " ON THE WRONG SIDE"
	}
	if ctx.Value(rpcTag{}) != "rpc" {
		line += " WITHOUT THE TAG"
	}
	msg := func(m any) string {
		if p, ok := m.(proto.Message); ok {
			return fmt.Sprintf("%T{%x}", m, marshal(p))
		}
		return fmt.Sprintf("%T", m)
	}
	add := func(format string, args ...any) { line += " " + fmt.Sprintf(format, args...) }
	switch e := s.(type) {
	case *stats.Begin:
		r.begin = e.BeginTime
		add("time %v failfast %v client stream %v server stream %v transparent %v", !e.BeginTime.IsZero(), e.FailFast, e.IsClientStream, e.IsServerStream, e.IsTransparentRetryAttempt)
	case *stats.InHeader:
		add("method %q compression %q header %s", e.FullMethod, e.Compression, showMD(e.Header))
		if !r.client {
			add("remote %v local %v authority %v", e.RemoteAddr != nil, e.LocalAddr != nil, len(e.Header[":authority"]) == 1)
		}
	case *stats.OutHeader:
		add("method %q compression %q header %s", e.FullMethod, e.Compression, showMD(e.Header))
		if r.client {
			add("remote %v local %v", e.RemoteAddr != nil, e.LocalAddr != nil)
		}
	case *stats.InPayload:
		add("%s length %d compressed %d wire %d time %v", msg(e.Payload), e.Length, e.CompressedLength, e.WireLength, !e.RecvTime.IsZero())
	case *stats.OutPayload:
		add("%s length %d compressed %d wire %d time %v", msg(e.Payload), e.Length, e.CompressedLength, e.WireLength, !e.SentTime.IsZero())
	case *stats.InTrailer:
		add("trailer %s", showMD(e.Trailer))
	case *stats.OutTrailer:
		add("trailer %s", showMD(e.Trailer))
	case *stats.End:
		_, err := describe(e.Error)
		add("error %s trailer %s begin as before %v in order %v", err, showMD(e.Trailer), e.BeginTime.Equal(r.begin), !e.EndTime.Before(e.BeginTime))
	default: // from a resolver or a balancer
		return ""
	}
	return line
}

// dump waits for the ends of n calls, notes what was recorded, and clears it.
func (r *recorder) dump(c *C, a *Actor, n int) {
	for range n {
		c.Wait(r.ended)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.client {
		for _, l := range r.all {
			if strings.HasPrefix(l, "TagRPC") {
				a.Note("%s", l)
			}
		}
		a.Note("first: %s", r.first)
		for _, l := range r.out {
			a.Note("%s", l)
		}
		for _, l := range append(r.in, r.payloads...) {
			a.Note("%s", l)
		}
		a.Note("last: %s", r.last)
	} else {
		for _, l := range r.all {
			a.Note("%s", l)
		}
	}
	r.out, r.in, r.payloads, r.all, r.first, r.last = nil, nil, nil, nil, "", ""
}

// noteEnds notes how many end events there were, and their errors.
func (r *recorder) noteEnds(a *Actor) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ends []string
	for _, l := range r.all {
		if strings.HasPrefix(l, "End ") {
			ends = append(ends, l)
		}
	}
	a.Note("%d: %q", len(ends), ends)
}

// statsPair is a client's and a server's recorder.
type statsPair struct {
	c              *C
	client, server *recorder
}

func newStatsPair(c *C) statsPair { return statsPair{c, newRecorder(true), newRecorder(false)} }

func (p statsPair) config(s *Service) Config {
	return Config{Service: s, ClientStats: []stats.Handler{p.client}, ServerStats: []stats.Handler{p.server}}
}

func (p statsPair) dump(label string) {
	for _, side := range []struct {
		name string
		r    *recorder
	}{{"stats client", p.client}, {"stats server", p.server}} {
		a := p.c.Named(side.name)
		a.Note("--- %s", label)
		side.r.dump(p.c, a, 1)
	}
}

// statsCases are item 38.
var statsCases = []Case{
	{38, "unary calls", func(c *C) {
		p := newStatsPair(c)
		var end error
		conn := c.Start(p.config(&Service{Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
			grpc.SetHeader(ctx, metadata.Pairs("h", "1"))
			grpc.SetTrailer(ctx, metadata.Pairs("t", "1"))
			return echo(ctx, &pb.SimpleRequest{Payload: payload("longer than %s", m.Payload.Body)})
		}, Empty: func(ctx context.Context, m *pb.Empty) (*pb.Empty, error) {
			grpc.SetTrailer(ctx, metadata.Pairs("t", "1"))
			return nil, end
		}}))
		ctx := metadata.AppendToOutgoingContext(c.Context(), "k", "v")
		_, err := conn.UnaryCall(ctx, request("x"))
		c.Err("ok", err)
		p.dump("ok")
		end = status.Error(codes.NotFound, "gone")
		_, err = conn.EmptyCall(c.Context(), &pb.Empty{})
		c.Err("error", err)
		p.dump("error")
		end = fmt.Errorf("plain")
		_, err = conn.EmptyCall(c.Context(), &pb.Empty{}, grpc.WaitForReady(true))
		c.Err("plain error", err)
		p.dump("plain error")
	}},
	{38, "a server reports the reply of a unary call before the call returns", func(c *C) {
		for _, codec := range []encoding.CodecV2{nil, onceCodec{"once", new(atomic.Int32)}} {
			var reported atomic.Int32
			conn := c.Start(Config{Service: echoService(), ServerCodec: codec, ServerStats: []stats.Handler{slow{reported: &reported}}})
			for _, size := range []int{10, 50_000} {
				_, err := conn.UnaryCall(c.Context(), sized(size))
				c.Note("%d reported", reported.Swap(0))
				c.Err("unary", err)
			}
		}
	}},
	{38, "streams", func(c *C) {
		p := newStatsPair(c)
		conn := c.Start(p.config(echoService()))
		s, err := conn.FullDuplexCall(c.Context())
		c.Err("bidi", err)
		for _, text := range []string{"1", "22"} {
			c.Err("send", s.Send(in(text)))
			_, err = s.Recv()
			c.Err("recv", err)
		}
		c.Err("close", s.CloseSend())
		_, err = s.Recv()
		c.Err("end", err)
		p.dump("bidi")
		o, err := conn.StreamingOutputCall(c.Context(), in("x"))
		c.Err("server stream", err)
		for err == nil {
			_, err = o.Recv()
		}
		c.Err("end", err)
		p.dump("server stream")
		i, err := conn.StreamingInputCall(c.Context())
		c.Err("client stream", err)
		for range 3 {
			c.Err("send", i.Send(&pb.StreamingInputCallRequest{Payload: payload("abc")}))
		}
		_, err = i.CloseAndRecv()
		c.Err("end", err)
		p.dump("client stream")
	}},
	{38, "streams that send headers, or fail", func(c *C) {
		p := newStatsPair(c)
		conn := c.Start(p.config(&Service{Duplex: func(s duplexServer) error {
			s.SendHeader(metadata.Pairs("h", "1"))
			s.SetTrailer(metadata.Pairs("t", "1"))
			return status.Error(codes.Aborted, "a")
		}}))
		s, err := conn.FullDuplexCall(c.Context())
		c.Err("start", err)
		_, err = s.Recv()
		c.Err("end", err)
		p.dump("failed")
		s2, err := conn.NewStream(c.Context(), bidiDesc, unaryCall)
		c.Err("start", err)
		c.Err("send", s2.SendMsg(request("x")))
		c.Err("close", s2.CloseSend())
		c.Err("recv", s2.RecvMsg(&pb.SimpleResponse{}))
		p.dump("unimplemented method")
	}},
	{38, "a call whose context is done, and one refused", func(c *C) {
		p := newStatsPair(c)
		conn := c.Start(p.config(echoService()))
		ctx, cancel := c.Cancellable()
		cancel()
		_, err := conn.UnaryCall(ctx, request("x"))
		c.Err("done", err)
		p.client.dump(c, c.Named("stats client"), 0)
		_, err = conn.UnaryCall(metadata.NewOutgoingContext(c.Context(), metadata.MD{"K": {""}}), request("x"))
		c.Err("illegal metadata", err)
		p.client.dump(c, c.Named("stats client"), 0)
		_, err = conn.UnaryCall(c.Context(), request("xxxx"), grpc.MaxCallSendMsgSize(1))
		c.Err("too large", err)
		p.client.dump(c, c.Named("stats client"), 1)
		_, err = conn.UnaryCall(c.Context(), request("xxxx"), grpc.MaxCallRecvMsgSize(1))
		c.Err("reply too large", err)
		c.Wait(p.client.ended)
		p.client.mu.Lock()
		defer p.client.mu.Unlock()
		// grpc-go's transport reports the trailer of a reply that is not received, before
		// or after the end.
		all := slices.DeleteFunc(p.client.all, func(line string) bool { return strings.HasPrefix(line, "InTrailer") })
		c.Named("stats client").Note("last: %s", all[len(all)-1])
	}},
	{38, "a cancelled stream", func(c *C) {
		p := newStatsPair(c)
		started := c.Gate()
		conn := c.Start(p.config(&Service{Duplex: func(s duplexServer) error {
			started.Open()
			Until(s.Context(), s.Context().Done())
			return s.Context().Err()
		}}))
		ctx, cancel := c.Cancellable()
		s, err := conn.FullDuplexCall(ctx)
		c.Err("start", err)
		started.Wait()
		cancel()
		_, err = s.Recv()
		c.Err("recv", err)
		for _, r := range []*recorder{p.client, p.server} {
			c.Wait(r.ended)
			r.mu.Lock()
			c.Named("stats").Note("client %v first %s", r.client, r.first)
			c.Named("stats").Note("client %v last %s", r.client, r.last)
			r.mu.Unlock()
		}
	}},
	{38, "an abandoned stream has one End on each side", func(c *C) {
		for _, receives := range []bool{false, true} {
			p := newStatsPair(c)
			started := c.Gate()
			conn := c.Start(p.config(&Service{Duplex: func(s duplexServer) error {
				s.SendHeader(nil)
				started.Open()
				Until(s.Context(), s.Context().Done())
				return s.Context().Err()
			}}))
			ctx, cancel := c.Cancellable()
			s, err := conn.FullDuplexCall(ctx)
			c.Err("start", err)
			c.Err("send", s.Send(in("x")))
			started.Wait()
			cancel()
			c.Wait(p.client.ended)
			c.Wait(p.server.ended)
			// A later operation that sees the cancellation must not report it again.
			if receives {
				for range 2 {
					_, err = s.Recv()
					c.Err("recv", err)
				}
				c.Err("send", s.Send(in("x")))
				c.Err("close", s.CloseSend())
			}
			c.Code("close", conn.Close())
			conn.Stop()
			c.Pause()
			p.client.noteEnds(c.Named("stats client"))
			p.server.noteEnds(c.Named("stats server"))
		}
	}},
	{38, "unknown service and unknown handler", func(c *C) {
		p := newStatsPair(c)
		conn := c.Start(p.config(echoService()))
		c.Err("unknown", conn.Invoke(c.Context(), "/none/Call", request("x"), &pb.Empty{}))
		// grpc-go's server reports the header of such a call, but never its end. The
		// client's events depend on whether the request was sent in time.
		p.client.dump(c, c.Named("ignored"), 1)
		delete(c.actors, "ignored")
		p = newStatsPair(c)
		cfg := p.config(nil)
		cfg.Unknown = func(any, grpc.ServerStream) error { return status.Error(codes.NotFound, "n") }
		conn = c.Start(cfg)
		c.Err("handler", conn.Invoke(c.Context(), "/none/Call", request("x"), &pb.Empty{}))
		a := c.Named("stats server")
		c.Wait(p.server.ended)
		p.server.dump(c, a, 0)
	}},
	{38, "tags reach handlers and interceptors", func(c *C) {
		p := newStatsPair(c)
		h := c.Named("handler")
		cfg := p.config(&Service{
			Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
				h.Note("unary %v %v", ctx.Value(rpcTag{}), ctx.Value(connTag{}))
				return echo(ctx, m)
			},
			Duplex: func(s duplexServer) error {
				h.Note("stream %v %v", s.Context().Value(rpcTag{}), s.Context().Value(connTag{}))
				return nil
			},
		})
		cfg.UnaryServer = []grpc.UnaryServerInterceptor{func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			h.Note("interceptor %v %v", ctx.Value(rpcTag{}), ctx.Value(connTag{}))
			return next(ctx, req)
		}}
		conn := c.Start(cfg)
		_, err := conn.UnaryCall(c.Context(), request("x"))
		c.Err("unary", err)
		s, err := conn.FullDuplexCall(c.Context())
		c.Err("start", err)
		c.Note("client stream's context %v", s.Context().Value(rpcTag{}))
		_, err = s.Recv()
		c.Err("recv", err)
	}},
	{38, "metadata that a stats handler adds is sent", func(c *C) {
		conn := c.Start(Config{Service: &Service{Unary: noteMD(c)}, ClientStats: []stats.Handler{injector{}}})
		_, err := conn.UnaryCall(metadata.AppendToOutgoingContext(c.Context(), "k", "v"), request("x"))
		c.Err("unary", err)
		_, err = conn.UnaryCall(c.Context(), request("x"))
		c.Err("unary", err)
	}},
	{38, "two handlers on each side", func(c *C) {
		p, q := newStatsPair(c), newStatsPair(c)
		conn := c.Start(Config{Service: echoService(), ClientStats: []stats.Handler{p.client, q.client}, ServerStats: []stats.Handler{p.server, q.server}})
		_, err := conn.UnaryCall(c.Context(), request("x"))
		c.Err("unary", err)
		p.dump("first")
		q.dump("second")
	}},
	{38, "events of the connection", func(c *C) {
		p := newStatsPair(c)
		conn := c.Start(p.config(echoService()))
		_, err := conn.UnaryCall(c.Context(), request("x"))
		c.Err("unary", err)
		conn.Close()
		for _, r := range []*recorder{p.client, p.server} {
			select {
			case <-r.connEnded:
			case <-time.After(2 * time.Second):
				c.Note("no ConnEnd")
			}
			r.mu.Lock()
			for _, l := range r.conn {
				c.Note("%s", l)
			}
			r.mu.Unlock()
		}
	}},
}

// slow counts the messages that are reported to it as sent, and takes its time.
type slow struct {
	sizes
	reported *atomic.Int32
}

func (s slow) HandleRPC(_ context.Context, e stats.RPCStats) {
	if _, ok := e.(*stats.OutPayload); ok {
		time.Sleep(10 * time.Millisecond)
		s.reported.Add(1)
	}
}

// injector adds metadata, as tracing does.
type injector struct{}

func (injector) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (injector) HandleConn(context.Context, stats.ConnStats)                       {}
func (injector) HandleRPC(context.Context, stats.RPCStats)                         {}
func (injector) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "traceparent", "00-1")
}
