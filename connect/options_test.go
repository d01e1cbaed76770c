package nearconnect_test

import (
	"bytes"
	"compress/flate"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectproto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall"
	nearconnect "github.com/nearcall/nearcall/connect"
	"github.com/nearcall/nearcall/connect/internal/echopb"
	"github.com/nearcall/nearcall/connect/internal/echopb/echopbconnect"
	"github.com/nearcall/nearcall/loop"
)

func TestLimitsOfMessages(t *testing.T) {
	big := &echopb.Message{Text: strings.Repeat("x", 2000)}
	onEachPath(t, func(t *testing.T, path string) {
		for name, test := range map[string]struct {
			server []nearcall.ServerOption
			client []grpc.CallOption
		}{
			"the server receives": {[]nearcall.ServerOption{nearcall.MaxRecvMsgSize(1000)}, nil},
			"the server sends":    {[]nearcall.ServerOption{nearcall.MaxSendMsgSize(1000)}, nil},
			"the client receives": {nil, []grpc.CallOption{grpc.MaxCallRecvMsgSize(1000)}},
			"the client sends":    {nil, []grpc.CallOption{grpc.MaxCallSendMsgSize(1000)}},
		} {
			t.Run(name, func(t *testing.T) {
				c := clientOf(connectTo(t, path, serverOf(echo{}, test.server...)), test.client...)
				_, err := c.Unary(t.Context(), big)
				wantCode(t, err, connect.CodeResourceExhausted)
				if _, err = c.Unary(t.Context(), &echopb.Message{}); err != nil {
					t.Error(err)
				}
				s, _ := c.Chat(t.Context())
				if err = s.Send(big); err == nil {
					_, err = s.Receive()
				}
				wantCode(t, err, connect.CodeResourceExhausted)
			})
		}
	})
}

// TestInterceptors: those of both clients and both servers see a call, in this order.
func TestInterceptors(t *testing.T) {
	onEachPath(t, func(t *testing.T, path string) {
		var mu sync.Mutex
		var seen []string
		note := func(format string, args ...any) {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, fmt.Sprintf(format, args...))
		}
		server := connect.NewServer(func(next connect.ServerFunc) connect.ServerFunc {
			return func(ctx context.Context, spec connect.Spec, s connect.ServerStream) error {
				note("Connect's server: %v", spec.StreamType)
				return next(ctx, spec, s)
			}
		})
		echopbconnect.RegisterEchoHandler(server, echo{})
		var kept *echopb.Message
		srv := newServer(server,
			nearcall.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
				note("gRPC's server: %s with %v", info.FullMethod, req.(*echopb.Message).GetNumber())
				kept = req.(*echopb.Message)
				reply, err := next(ctx, req)
				if reply.(*echopb.Message) == req {
					t.Error("the handler got the interceptor's message itself")
				}
				return reply, err
			}),
			nearcall.ChainStreamInterceptor(func(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
				note("gRPC's server: %s, client streams %t", info.FullMethod, info.IsClientStream)
				return next(srv, s)
			}))
		conn := connectTo(t, path, srv,
			nearcall.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				note("gRPC's client: %s", method)
				return next(ctx, method, req, reply, cc, opts...)
			}),
			nearcall.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
				note("gRPC's client: %s", desc.StreamName)
				return next(ctx, desc, cc, method, opts...)
			}))
		c := echopbconnect.NewEchoClient(connect.NewClient(nearconnect.NewTransport(conn), func(next connect.ClientFunc) connect.ClientFunc {
			return func(ctx context.Context, spec connect.Spec) (connect.ClientStream, error) {
				note("Connect's client: %v", spec.StreamType)
				return next(ctx, spec)
			}
		}))
		if reply, err := c.Unary(t.Context(), &echopb.Message{Number: 5}); err != nil || reply.GetNumber() != 5 {
			t.Errorf("Unary returns %v and %v", reply, err)
		}
		if kept.GetNumber() != 5 {
			t.Errorf("after the call the interceptor's message is %v", kept)
		}
		s, err := c.Count(t.Context(), &echopb.Message{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Receive(); err != io.EOF {
			t.Error(err)
		}
		want := []string{
			"Connect's client: unary",
			"gRPC's client: /nearcall.connect.echo.v1.Echo/Unary",
			"gRPC's server: /nearcall.connect.echo.v1.Echo/Unary with 5",
			"Connect's server: unary",
			"Connect's client: server",
			"gRPC's client: Count",
			"gRPC's server: /nearcall.connect.echo.v1.Echo/Count, client streams false",
			"Connect's server: server",
		}
		if !slices.Equal(seen, want) {
			t.Errorf("the interceptors saw\n%s\nwant\n%s", strings.Join(seen, "\n"), strings.Join(want, "\n"))
		}
	})
}

// TestAHandlersMessageIsReplaced: what the handler's message has before Receive does not stay.
func TestAHandlersMessageIsReplaced(t *testing.T) {
	pass := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		return next(ctx, req)
	}
	for _, opts := range [][]nearcall.ServerOption{nil, {nearcall.UnaryInterceptor(pass)}} {
		server := connect.NewServer()
		unary := echopb.File_internal_echopb_echo_proto.Services().Get(0).Methods().ByName("Unary")
		server.Register(connect.Method{
			Spec: connect.Spec{Procedure: echopbconnect.EchoUnaryProcedure, Schema: unary},
			Handler: func(_ context.Context, _ connect.Spec, s connect.ServerStream) error {
				m := &echopb.Message{Text: "old"}
				if err := s.Receive(m); err != nil {
					return err
				}
				if err := s.Receive(m); err != io.EOF {
					t.Errorf("a second Receive returns %v", err)
				}
				return s.Send(m)
			},
		})
		m, err := clientOf(connectTo(t, "inproc", newServer(server, opts...))).Unary(t.Context(), &echopb.Message{Number: 1})
		if err != nil || m.GetNumber() != 1 || m.GetText() != "" {
			t.Errorf("Unary returns %v and %v", m, err)
		}
	}
}

// TestAnInterceptorsErrorOfConnect passes through the client of gRPC as it is.
func TestAnInterceptorsErrorOfConnect(t *testing.T) {
	own := connect.NewError(connect.CodeAborted, "by the interceptor")
	conn := connectTo(t, "inproc", serverOf(echo{}), nearcall.WithUnaryInterceptor(
		func(context.Context, string, any, any, *grpc.ClientConn, grpc.UnaryInvoker, ...grpc.CallOption) error {
			return own
		}))
	_, err := clientOf(conn).Unary(t.Context(), &echopb.Message{})
	if e := wantCode(t, err, connect.CodeAborted); e.Message() != own.Message() {
		t.Errorf("the error is %v", e)
	}
}

// A counting codec of Connect counts what it encodes.
type counting struct {
	connect.Codec
	marshalled atomic.Int64
}

func (c *counting) MarshalWrite(ctx context.Context, dst io.Writer, msg any) error {
	c.marshalled.Add(1)
	return c.Codec.MarshalWrite(ctx, dst, msg)
}

func TestCodecs(t *testing.T) {
	onEachPath(t, func(t *testing.T, path string) {
		var name string
		conn := connectTo(t, path, serverOf(echo{
			unary: func(ctx context.Context, m *echopb.Message) (*echopb.Message, error) {
				info, _ := connect.CallInfoForServerContext(ctx)
				name = info.Codec
				return m, nil
			},
		}))
		json := &counting{Codec: connectproto.NewJSONCodec()}
		c := connectCaller(conn)
		testKinds(t, t.Context(), c)
		client := clientOf(conn, grpc.ForceCodecV2(nearconnect.Codec(json)))
		ctx, info := connect.NewClientContext(t.Context())
		reply, err := client.Unary(ctx, &echopb.Message{Number: 1, Text: "ä"})
		if err != nil || reply.GetNumber() != 1 || reply.GetText() != "ä" {
			t.Errorf("Unary returns %v and %v", reply, err)
		}
		s, _ := client.Chat(t.Context())
		if err := s.Send(&echopb.Message{Number: 2}); err != nil {
			t.Error(err)
		}
		if m, err := s.Receive(); err != nil || m.GetNumber() != 2 {
			t.Errorf("Chat returns %v and %v", m, err)
		}
		_ = s.Close()
		wantText(t, "the handler's codec", name, "json")
		wantText(t, "the caller's codec", info.Codec, "json")
		if n := json.marshalled.Load(); n != 2 {
			t.Errorf("the codec has encoded %d messages, want 2", n)
		}
	})
}

// A flateCompressor is a compressor of Connect.
type flateCompressor struct{ opened, closed atomic.Int64 }

func (*flateCompressor) Name() string { return "nearconnect-test" }

func (*flateCompressor) Compress(dst io.Writer) (io.WriteCloser, error) {
	return flate.NewWriter(dst, flate.BestSpeed)
}

func (c *flateCompressor) Decompress(src io.Reader) (io.ReadCloser, error) {
	c.opened.Add(1)
	return &closing{flate.NewReader(src), &c.closed}, nil
}

type closing struct {
	io.ReadCloser
	closed *atomic.Int64
}

func (c *closing) Close() error {
	c.closed.Add(1)
	return c.ReadCloser.Close()
}

var ownCompressor flateCompressor

func init() { encoding.RegisterCompressor(nearconnect.Compressor(&ownCompressor)) }

func TestCompression(t *testing.T) {
	for _, name := range []string{"gzip", "nearconnect-test"} {
		t.Run(name, func(t *testing.T) {
			onEachPath(t, func(t *testing.T, path string) {
				ownCompressor.opened.Store(0)
				ownCompressor.closed.Store(0)
				var got string
				c := clientOf(connectTo(t, path, serverOf(echo{
					unary: func(ctx context.Context, m *echopb.Message) (*echopb.Message, error) {
						info, _ := connect.CallInfoForServerContext(ctx)
						got = info.RequestEncoding
						return m, nil
					},
				})), grpc.UseCompressor(name))
				ctx, info := connect.NewClientContext(t.Context())
				reply, err := c.Unary(ctx, &echopb.Message{Text: long})
				if err != nil || reply.GetText() != long {
					t.Errorf("Unary returns %d bytes of text and %v", len(reply.GetText()), err)
				}
				wantText(t, "the handler's encoding", got, name)
				wantText(t, "the caller's encoding", info.RequestEncoding, name)
				want := int64(2)
				if path == "inproc" || name == "gzip" {
					want = 0 // in process nothing is compressed
				}
				if opened, closed := ownCompressor.opened.Load(), ownCompressor.closed.Load(); opened != want || closed != want {
					t.Errorf("%d readers were opened and %d closed, want %d", opened, closed, want)
				}
			})
		})
	}
}

// TestMessagesInProcess: they are passed on as values. If both sides promise not to write to them the
// handler gets the caller's nested messages themselves, and copies otherwise.
func TestMessagesInProcess(t *testing.T) {
	for _, shared := range []bool{false, true} {
		t.Run(fmt.Sprintf("shared=%t", shared), func(t *testing.T) {
			var got *echopb.Message
			var server []nearcall.ServerOption
			var client []nearcall.DialOption
			if shared {
				server, client = append(server, nearcall.ImmutableMessages()), append(client, nearcall.WithImmutableMessages())
			}
			c := clientOf(connectTo(t, "inproc", serverOf(echo{
				unary: func(_ context.Context, m *echopb.Message) (*echopb.Message, error) {
					got = m.GetNested()[0]
					return m, nil
				},
				chat: func(_ context.Context, s echopbconnect.EchoChatServerStream) error {
					m, err := s.Receive()
					if err != nil {
						return err
					}
					got = m.GetNested()[0]
					return s.Send(m)
				},
			}, server...), client...))
			within := &echopb.Message{Text: "within"}
			check := func(kind string, reply *echopb.Message, err error) {
				t.Helper()
				if err != nil || reply.GetNested()[0].GetText() != "within" {
					t.Fatalf("%s returns %v and %v", kind, reply, err)
				}
				if (got == within) != shared || (got == reply.GetNested()[0]) != shared {
					t.Errorf("%s: the handler has the caller's message: %t, and the caller the handler's: %t", kind, got == within, got == reply.GetNested()[0])
				}
			}
			for _, ctx := range []context.Context{context.Background(), t.Context()} {
				reply, err := c.Unary(ctx, &echopb.Message{Nested: []*echopb.Message{within}})
				check("Unary", reply, err)
			}
			s, _ := c.Chat(t.Context())
			if err := s.Send(&echopb.Message{Nested: []*echopb.Message{within}}); err != nil {
				t.Fatal(err)
			}
			reply, err := s.Receive()
			check("Chat", reply, err)
			_ = s.Close()
		})
	}
}

// TestHandlersOnALoop: Register takes a registrar for a loop, and tasks of the loop use Connect's client.
func TestHandlersOnALoop(t *testing.T) {
	onEachPath(t, func(t *testing.T, path string) {
		l := loop.New()
		defer l.Close(context.Background())
		inner := connect.NewServer()
		echopbconnect.RegisterEchoHandler(inner, echo{})
		backend := clientOf(connectTo(t, path, newServer(inner)))
		counter := 0 // only tasks of the loop use it
		server := connect.NewServer()
		echopbconnect.RegisterEchoHandler(server, echo{
			unary: func(ctx context.Context, m *echopb.Message) (*echopb.Message, error) {
				counter++
				s, err := backend.Chat(ctx)
				if err != nil {
					return nil, err
				}
				defer s.Close()
				if err := s.Send(m); err != nil {
					return nil, err
				}
				return s.Receive()
			},
			sum: func(_ context.Context, s echopbconnect.EchoSumServerStream) (*echopb.Message, error) {
				counter++
				return sumOf(s.Receive)
			},
		})
		srv := nearcall.NewServer()
		nearconnect.Register(srv.OnLoop(l), server)
		conn := connectTo(t, path, srv)
		c := connectCaller(conn)
		var all sync.WaitGroup
		for i := range int64(20) {
			all.Go(func() {
				if m, err := c.unary(t.Context(), &echopb.Message{Number: i}); err != nil || m.GetNumber() != i {
					t.Errorf("Unary returns %v and %v", m, err)
				}
				if m, err := c.sum(t.Context(), &echopb.Message{Number: i}, &echopb.Message{Number: 1}); err != nil || m.GetNumber() != i+1 {
					t.Errorf("Sum returns %v and %v", m, err)
				}
			})
		}
		all.Wait()
		conn.Close()
		srv.Stop()
		if counter != 40 {
			t.Errorf("the loop has handled %d calls, want 40", counter)
		}
	})
}

func TestRegisterRefuses(t *testing.T) {
	register := func(procedures ...string) (why any) {
		defer func() { why = recover() }()
		server := connect.NewServer()
		for _, p := range procedures {
			server.Register(connect.Method{Spec: connect.Spec{Procedure: p}})
		}
		srv := nearcall.NewServer()
		echopb.RegisterEchoServer(srv, grpcEcho{})
		nearconnect.Register(srv, server)
		return nil
	}
	for _, wrong := range []string{"", "/", "/Method", "service/Method", "/service/", echopbconnect.EchoUnaryProcedure} {
		if register(wrong) == nil {
			t.Errorf("the procedure %q was registered", wrong)
		}
	}
	if why := register("/a.b/C", "/a.b/D"); why != nil {
		t.Error(why)
	}
}

func TestServicesRefuse(t *testing.T) {
	register := func(impl any, times int) (why any) {
		defer func() { why = recover() }()
		var s nearconnect.Services
		for range times {
			s.RegisterService(&echopb.Echo_ServiceDesc, impl)
		}
		return nil
	}
	if register(struct{}{}, 1) == nil || register(grpcEcho{}, 2) == nil {
		t.Error("a wrong type or a duplicate was registered")
	}
	if why := register(grpcEcho{}, 1); why != nil {
		t.Error(why)
	}
}

// TestSpecsOfServicesOfGRPC: what generated code of Connect says of a method is known for gRPC's, too.
func TestSpecsOfServicesOfGRPC(t *testing.T) {
	var services nearconnect.Services
	echopb.RegisterEchoServer(&services, grpcEcho{})
	theirs := connect.NewServer()
	echopbconnect.RegisterEchoHandler(theirs, echo{})
	byName := map[string]connect.Spec{}
	for s := range nearconnect.NewServer(&services).Specs() {
		byName[s.Procedure] = s
	}
	n := 0
	for want := range theirs.Specs() {
		if n++; byName[want.Procedure] != want {
			t.Errorf("the spec is %v, want %v", byName[want.Procedure], want)
		}
	}
	if n != 4 || len(byName) != n {
		t.Errorf("there are %d specs and %d in Connect's code", len(byName), n)
	}
}

func TestARequestThatCannotBeDecoded(t *testing.T) {
	onEachPath(t, func(t *testing.T, path string) {
		conn := connectTo(t, path, serverOf(echo{}))
		err := conn.Invoke(t.Context(), echopb.Echo_Unary_FullMethodName, []byte{0xff}, &echopb.Message{}, grpc.ForceCodecV2(nearconnect.Codec(bytesCodec{})))
		if status.Code(err) != codes.Internal {
			t.Errorf("the error is %v", err)
		}
	})
}

// bytesCodec sends bytes, which it calls protobuf.
type bytesCodec struct{}

func (bytesCodec) Name() string { return "proto" }

func (bytesCodec) MarshalWrite(_ context.Context, dst io.Writer, msg any) error {
	_, err := io.Copy(dst, bytes.NewReader(msg.([]byte)))
	return err
}

func (bytesCodec) UnmarshalRead(_ context.Context, src io.Reader, msg any) error {
	b, err := io.ReadAll(src)
	return errors.Join(err, proto.Unmarshal(b, msg.(proto.Message)))
}
