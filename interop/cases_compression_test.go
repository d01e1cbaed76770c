package interop

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/experimental"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall"
)

// A compressor is gzip under another name, which can be made to fail.
type compressor struct {
	name                 string
	compress, decompress error
	corrupt              bool
	counts               sync.Map // compressed messages, by a text in them: *atomic.Int32
}

// counting returns a unique text, and a function that returns how many messages with it
// were compressed. Cases run concurrently with the same compressors.
func (c *compressor) counting() (text string, count func() int32) {
	text = rand.Text()
	n := new(atomic.Int32)
	c.counts.Store(text, n)
	return text, n.Load
}

func (c *compressor) Name() string { return c.name }

func (c *compressor) Compress(w io.Writer) (io.WriteCloser, error) {
	if c.compress != nil {
		return nil, c.compress
	}
	return &compressing{c: c, to: w}, nil
}

func (c *compressor) Decompress(r io.Reader) (io.Reader, error) {
	if c.decompress != nil {
		return nil, c.decompress
	}
	return gzip.NewReader(r)
}

type compressing struct {
	c     *compressor
	to    io.Writer
	plain bytes.Buffer
}

func (w *compressing) Write(b []byte) (int, error) { return w.plain.Write(b) }

func (w *compressing) Close() error {
	w.c.counts.Range(func(text, n any) bool {
		if bytes.Contains(w.plain.Bytes(), []byte(text.(string))) {
			n.(*atomic.Int32).Add(1)
		}
		return true
	})
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	z.Write(w.plain.Bytes())
	z.Close()
	b := out.Bytes()
	if w.c.corrupt {
		b[len(b)-8]++ // corrupts the checksum
	}
	_, err := w.to.Write(b)
	return err
}

var (
	replies   = &compressor{name: "interop-replies"}
	unwilling = &compressor{name: "interop-unwilling", compress: errors.New("cannot compress")}
	unable    = &compressor{name: "interop-unable", decompress: errors.New("cannot decompress")}
	corrupt   = &compressor{name: "interop-corrupt", corrupt: true}
)

func init() {
	for _, c := range []*compressor{replies, unwilling, unable, corrupt} {
		encoding.RegisterCompressor(c)
	}
}

// headers is a stats handler that records header events.
type headers struct {
	mu    sync.Mutex
	lines []string
	ended chan struct{}
}

func newHeaders() *headers { return &headers{ended: make(chan struct{}, 100)} }

func (*headers) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (*headers) HandleConn(context.Context, stats.ConnStats)                       {}
func (*headers) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "tagged", "1")
}

func (h *headers) HandleRPC(_ context.Context, s stats.RPCStats) {
	show := func(kind, compression string, md metadata.MD) {
		own := md.Copy()
		for _, k := range []string{":authority", "user-agent"} { // their values differ by implementation
			if n := len(own[k]); n > 0 {
				own[k] = []string{fmt.Sprintf("%d of them", n)}
			}
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.lines = append(h.lines, fmt.Sprintf("%s compression %q %q", kind, compression, own))
	}
	switch s := s.(type) {
	case *stats.OutHeader:
		show("OutHeader", s.Compression, s.Header)
	case *stats.InHeader:
		show("InHeader", s.Compression, s.Header)
	case *stats.End:
		h.ended <- struct{}{}
	}
}

// dump notes the header events of one call.
func (h *headers) dump(c *C, who string) {
	c.Wait(h.ended)
	h.mu.Lock()
	defer h.mu.Unlock()
	slices.Sort(h.lines)
	for _, l := range h.lines {
		c.Named(who).Note("%s", l)
	}
	h.lines = nil
}

// compressionCases are about compressors and prepared messages, of items 35, 37 and 38.
var compressionCases = []Case{
	{35, "compressors that fail", func(c *C) {
		c.Compresses()
		h := c.Named("handler")
		conn := c.Start(Config{Service: &Service{
			Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
				return echo(ctx, m)
			},
			Duplex: func(s duplexServer) error {
				_, err := s.Recv()
				if s.Context().Err() == nil { // otherwise nothing was sent
					h.Err("recv", err)
				}
				return err
			},
		}})
		for _, bad := range []*compressor{unwilling, unable, corrupt} {
			c.Note("--- %s", bad.name)
			_, err := conn.UnaryCall(c.Context(), request("x"), grpc.UseCompressor(bad.name))
			c.Err("request", err)
			s, err := conn.FullDuplexCall(c.Context(), grpc.UseCompressor(bad.name))
			c.Err("start", err)
			c.Err("send", s.Send(in("x")))
			_, err = s.Recv()
			c.Err("recv", err)
		}
	}},
	{35, "replies whose compressors fail", func(c *C) {
		c.Compresses()
		name := ""
		conn := c.Start(Config{Service: &Service{
			Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
				c.Named("unary "+name).Note("set: %v", nearcall.SetSendCompressor(ctx, name))
				return echo(ctx, m)
			},
			Duplex: func(s duplexServer) error {
				h := c.Named("stream " + name) // it can still run when its caller has the error
				h.Note("set: %v", nearcall.SetSendCompressor(s.Context(), name))
				err := s.Send(out("x"))
				h.Err("send", err)
				return err
			},
		}})
		for _, bad := range []*compressor{unwilling, unable, corrupt} {
			c.Note("--- %s", bad.name)
			name = bad.name
			_, err := conn.UnaryCall(c.Context(), request("x"))
			c.Err("reply", err)
			s, err := conn.FullDuplexCall(c.Context())
			c.Err("start", err)
			_, err = s.Recv()
			c.Err("recv", err)
		}
	}},
	{35, "too large once it is decompressed", func(c *C) {
		c.Compresses()
		conn := c.Start(Config{Service: echoService(), ServerMaxRecv: 1000})
		_, err := conn.UnaryCall(c.Context(), sized(1001), grpc.UseCompressor("gzip"))
		c.Err("request", err)
		_, err = conn.UnaryCall(c.Context(), sized(1000), grpc.UseCompressor("gzip"), grpc.MaxCallRecvMsgSize(900))
		c.Err("reply", err)
	}},
	{35, "limits count what is compressed", func(c *C) { limitsOf(c, sized(5000)) }},
	{35, "limits count what becomes larger when it is compressed", func(c *C) {
		c.Compresses() // in process only what is larger than a limit is compressed, to count
		noise := make([]byte, 5000)
		rand.Read(noise)
		limitsOf(c, &pb.SimpleRequest{Payload: &pb.Payload{Body: noise}})
	}},

	{37, "SetSendCompressor", func(c *C) {
		h := c.Named("handler")
		names, late := []string(nil), false
		client, server := newHeaders(), newHeaders()
		set := func(ctx context.Context, send func(metadata.MD) error) {
			supported, err := nearcall.ClientSupportedCompressors(ctx)
			h.Note("the client supports %q, %v", supported, err)
			if late {
				h.Err("send header", send(nil))
			}
			for _, name := range names {
				h.Note("set %q: %v", name, nearcall.SetSendCompressor(ctx, name))
			}
		}
		conn := c.Start(Config{ClientStats: []stats.Handler{client}, ServerStats: []stats.Handler{server}, Service: &Service{
			Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
				set(ctx, func(md metadata.MD) error { return grpc.SendHeader(ctx, md) })
				grpc.SetHeader(ctx, metadata.Pairs("h", "1"))
				return echo(ctx, m)
			},
			Duplex: func(s duplexServer) error {
				set(s.Context(), s.SendHeader)
				for range 2 {
					if err := s.Send(out("x")); err != nil {
						return err
					}
				}
				return nil
			},
		}})
		ctx := metadata.AppendToOutgoingContext(c.Context(), "k", "v")
		for _, late = range []bool{false, true} {
			for _, names = range [][]string{nil, {"gzip"}, {"identity"}, {replies.name}, {"gzip", "identity"}, {"interop-unknown"}, {""}, {"GZIP"}} {
				for _, asked := range []string{"", "gzip", "identity"} {
					c.Note("--- %q, asked for %q", names, asked)
					var header metadata.MD
					m, err := conn.UnaryCall(ctx, request("x"), grpc.UseCompressor(asked), grpc.Header(&header))
					c.Err("unary", err)
					c.Msg("got", m)
					c.MD("header", header)
					client.dump(c, "stats client")
					server.dump(c, "stats server")
					s, err := conn.FullDuplexCall(ctx, grpc.UseCompressor(asked))
					c.Err("start", err)
					header, err = s.Header()
					c.MD("header", header)
					for err == nil {
						_, err = s.Recv()
						c.Err("recv", err)
					}
					client.dump(c, "stats client")
					server.dump(c, "stats server")
				}
			}
		}
	}},
	{37, "replies are compressed with what was set", func(c *C) {
		c.Compresses()
		conn := c.Start(Config{Service: &Service{
			Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
				c.Named("handler").Note("set: %v", nearcall.SetSendCompressor(ctx, replies.name))
				return echo(ctx, m)
			},
		}})
		text, compressed := replies.counting()
		for range 3 {
			_, err := conn.UnaryCall(c.Context(), request(text))
			c.Err("unary", err)
		}
		c.Note("compressed %d", compressed())
	}},
	{37, "SetSendCompressor of a call that is over", func(c *C) {
		h := c.Named("handler")
		started, over := c.Gate(), c.Gate()
		conn := c.Start(Config{Service: &Service{Duplex: func(s duplexServer) error {
			defer over.Open()
			started.Open()
			Until(s.Context(), s.Context().Done())
			h.Note("set: %v", nearcall.SetSendCompressor(s.Context(), "gzip"))
			return nil
		}}})
		ctx, cancel := c.Cancellable()
		s, err := conn.FullDuplexCall(ctx)
		c.Err("start", err)
		started.Wait()
		cancel()
		_, err = s.Recv()
		c.Err("recv", err)
		over.Wait()
		c.Note("outside: %v", nearcall.SetSendCompressor(c.Context(), "gzip"))
	}},
	{37, "AcceptCompressors", func(c *C) {
		h := c.Named("handler")
		name := ""
		conn := c.Start(Config{Service: &Service{
			Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
				supported, err := nearcall.ClientSupportedCompressors(ctx)
				h.Note("the client supports %q, %v", supported, err)
				if name != "" {
					h.Note("set %q: %v", name, nearcall.SetSendCompressor(ctx, name))
				}
				return echo(ctx, m)
			},
			Duplex: func(s duplexServer) error {
				if err := s.SendHeader(nil); err != nil {
					return err
				}
				return s.Send(out("x"))
			},
		}})
		ctx := metadata.AppendToOutgoingContext(c.Context(), "grpc-accept-encoding", "interop-own")
		for _, accepted := range [][]string{nil, {"gzip"}, {" gzip ", "gzip", "identity", replies.name}, {"identity"}, {replies.name}, {"interop-unknown"}} {
			for _, asked := range []string{"", "gzip", "identity"} {
				for _, name = range []string{"", "gzip"} {
					c.Note("--- %q, asked for %q, set %q", accepted, asked, name)
					_, err := conn.UnaryCall(ctx, request("x"), opts(asked, accepted)...)
					c.Err("unary", err)
				}
				s, err := conn.FullDuplexCall(ctx, opts(asked, accepted)...)
				c.Err("start", err)
				if err != nil {
					continue
				}
				_, err = s.Header()
				c.Err("header", err)
				for range 2 {
					_, err = s.Recv()
					c.Err("recv", err)
				}
			}
		}
	}},

	{37, "PreparedMsg of handlers", func(c *C) {
		h := c.Named("handler")
		conn := c.Start(Config{
			StreamServer: []grpc.StreamServerInterceptor{func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
				return next(srv, wrapped{s})
			}},
			Service: &Service{Duplex: func(s duplexServer) error {
				var p nearcall.PreparedMsg
				m := out("prepared")
				h.Err("encode", p.Encode(s, m))
				m.Payload.Body = []byte("changed")
				for range 3 {
					if err := p.Send(s); err != nil {
						return err
					}
				}
				h.Err("encode again", p.Encode(s, m))
				h.Err("send", p.Send(s))
				h.Err("encode nothing", p.Encode(s, nil))
				h.Err("send", p.Send(s))
				h.Err("encode what is no message", p.Encode(s, 1))
				return nil
			}},
		})
		for _, asked := range []string{"", "gzip"} {
			s, err := conn.FullDuplexCall(c.Context(), grpc.UseCompressor(asked))
			c.Err("start", err)
			for err == nil {
				var m *pb.StreamingOutputCallResponse
				m, err = s.Recv()
				c.Err("recv", err)
				c.Msg("got", m)
			}
		}
	}},
	{37, "PreparedMsg is compressed once", func(c *C) {
		c.Compresses()
		text, compressed := replies.counting()
		conn := c.Start(Config{Service: &Service{Duplex: func(s duplexServer) error {
			var p nearcall.PreparedMsg
			c.Named("handler").Err("encode", p.Encode(s, out(text)))
			for range 3 {
				if err := p.Send(s); err != nil {
					return err
				}
			}
			return nil
		}}})
		s, err := conn.FullDuplexCall(c.Context(), grpc.UseCompressor(replies.name))
		c.Err("start", err)
		for err == nil {
			var m *pb.StreamingOutputCallResponse
			m, err = s.Recv()
			c.Err("recv", err)
			c.Note("got what was sent: %v", string(m.GetPayload().GetBody()) == text)
		}
		c.Note("compressed %d", compressed())
	}},
	{37, "PreparedMsg of clients", func(c *C) {
		p := newStatsPair(c)
		conn := c.Start(p.config(echoService()))
		var m nearcall.PreparedMsg
		for range 2 {
			s, err := conn.FullDuplexCall(c.Context())
			c.Err("start", err)
			if m == (nearcall.PreparedMsg{}) {
				c.Err("encode", m.Encode(s, in("prepared")))
			}
			for range 2 {
				c.Err("send", m.Send(s))
				got, err := s.Recv()
				c.Err("recv", err)
				c.Msg("got", got)
			}
			c.Err("close", s.CloseSend())
			_, err = s.Recv()
			c.Err("end", err)
			p.server.dump(c, c.Named("stats server"), 1)
		}
	}},
	{37, "PreparedMsg and limits", func(c *C) {
		conn := c.Start(Config{Service: echoService(), ServerMaxRecv: 100})
		for _, n := range []int{100, 101, 201} {
			s, err := conn.FullDuplexCall(c.Context(), grpc.MaxCallSendMsgSize(200))
			c.Err("start", err)
			var p nearcall.PreparedMsg
			c.Err("encode", p.Encode(s, &pb.StreamingOutputCallRequest{Payload: sized(n).Payload}))
			c.Err("send", p.Send(s))
			_, err = s.Recv()
			c.Err("recv", err)
		}
	}},
	{37, "PreparedMsg of a client's stream within a handler", func(c *C) {
		h := c.Named("handler")
		back := c.Start(Config{Service: echoService()})
		conn := c.Start(Config{Service: &Service{Duplex: func(s duplexServer) error {
			to, err := back.FullDuplexCall(s.Context())
			h.Err("start", err)
			var p, q nearcall.PreparedMsg
			h.Err("encode", p.Encode(clientStream{to}, in("there")))
			h.Err("send", p.Send(to))
			m, err := to.Recv()
			h.Err("recv", err)
			h.Err("encode", q.Encode(s, m))
			return q.Send(s)
		}}})
		s, err := conn.FullDuplexCall(c.Context())
		c.Err("start", err)
		m, err := s.Recv()
		c.Err("recv", err)
		c.Msg("got", m)
	}},
}

// limitsOf sends m, compressed, with limits on each side.
func limitsOf(c *C, m *pb.SimpleRequest) {
	size := proto.Size(m)
	for _, limit := range []int{math.MinInt, -1, 10, 100, size - 1, size, size + 100} {
		for side, cfg := range []Config{{}, {}, {ServerMaxSend: limit}, {ServerMaxRecv: limit}} {
			c.Note("--- side %d, limit %d", side, limit)
			cfg.Service = echoService()
			conn := c.Start(cfg)
			opts := []grpc.CallOption{grpc.UseCompressor("gzip")}
			switch side {
			case 0:
				opts = append(opts, grpc.MaxCallSendMsgSize(limit))
			case 1:
				opts = append(opts, grpc.MaxCallRecvMsgSize(limit))
			}
			reply, err := conn.UnaryCall(c.Context(), m, opts...)
			c.Err("unary", err)
			c.Note("%d bytes", len(reply.GetPayload().GetBody()))
			s, err := conn.FullDuplexCall(c.Context(), opts...)
			c.Err("start", err)
			err = s.Send(&pb.StreamingOutputCallRequest{Payload: m.Payload})
			c.Err("send", err)
			got, err := s.Recv()
			c.Err("recv", err)
			c.Note("%d bytes", len(got.GetPayload().GetBody()))
		}
	}
}

// opts returns the options of a call whose request is compressed with asked.
func opts(asked string, accepted []string) []grpc.CallOption {
	return []grpc.CallOption{grpc.UseCompressor(asked), experimental.AcceptCompressors(accepted...)}
}

// wrapped and clientStream are streams as interceptors wrap them.
type (
	wrapped      struct{ grpc.ServerStream }
	clientStream struct{ grpc.ClientStream }
)
