package nearconnect_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectproto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nearcall/nearcall"
	nearconnect "github.com/nearcall/nearcall/connect"
	"github.com/nearcall/nearcall/connect/internal/echopb"
	"github.com/nearcall/nearcall/connect/internal/echopb/echopbconnect"
)

func detail(t *testing.T, m proto.Message) *connect.ErrorDetail {
	t.Helper()
	d, err := connectproto.NewErrorDetail(m)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestWhatCallersGetOfAHandlersError(t *testing.T) {
	var none *connect.Error
	detailed := connect.NewError(connect.CodeNotFound, "not here: 100 %").
		WithDetail(detail(t, wrapperspb.String("a"))).WithDetail(detail(t, durationpb.New(5)))
	onEachPath(t, func(t *testing.T, path string) {
		var fails error
		conn := connectTo(t, path, serverOf(echo{
			unary: func(context.Context, *echopb.Message) (*echopb.Message, error) { return nil, fails },
			chat:  func(context.Context, echopbconnect.EchoChatServerStream) error { return fails },
		}))
		c := clientOf(conn)
		for name, test := range map[string]struct {
			err     error
			code    connect.Code
			text    string
			details int
		}{
			"an error with details":     {detailed, connect.CodeNotFound, "not here: 100 %", 2},
			"one that is wrapped":       {errors.Join(errors.New("secret"), detailed), connect.CodeNotFound, "not here: 100 %", 2},
			"one that has a cause":      {detailed.WithCause(errors.New("secret")), connect.CodeNotFound, "not here: 100 %", 2},
			"an unusual code":           {connect.NewError(99, "99"), 99, "99", 0},
			"another call's":            {detailed.WithRemote(), connect.CodeInternal, "", 0},
			"another package's":         {errors.New("secret"), connect.CodeUnknown, "", 0},
			"gRPC's":                    {status.Error(codes.NotFound, "secret"), connect.CodeUnknown, "", 0},
			"a context's":               {context.Canceled, connect.CodeCanceled, "", 0},
			"that of a deadline":        {context.DeadlineExceeded, connect.CodeDeadlineExceeded, "", 0},
			"the end of another stream": {io.EOF, connect.CodeUnknown, "", 0},
			"a typed nil":               {none, connect.CodeUnknown, "", 0},
		} {
			t.Run(name, func(t *testing.T) {
				fails = test.err
				check := func(err error) {
					t.Helper()
					e := wantCode(t, err, test.code)
					wantText(t, "the message", e.Message(), test.text)
					if !e.IsRemote() {
						t.Error("the error does not count as remote")
					}
					if len(e.Details()) != test.details {
						t.Fatalf("there are %d details", len(e.Details()))
					}
					if test.details > 0 {
						m, err := connectproto.UnmarshalErrorDetail(e.Details()[0])
						if s, ok := m.(*wrapperspb.StringValue); !ok || s.GetValue() != "a" {
							t.Errorf("the first detail is %v, and the error %v", m, err)
						}
						wantText(t, "its type", e.Details()[0].Type, "google.protobuf.StringValue")
					}
				}
				_, err := c.Unary(t.Context(), &echopb.Message{})
				check(err)
				_, err = c.Unary(context.Background(), &echopb.Message{})
				check(err)
				s, _ := c.Chat(t.Context())
				_, err = s.Receive()
				check(err)
				if _, again := s.Receive(); again != err {
					t.Errorf("then Receive returns %v", again)
				}
				if err := s.Send(&echopb.Message{}); err != io.EOF {
					t.Errorf("then Send returns %v", err)
				}
				_, err = echopb.NewEchoClient(conn).Unary(t.Context(), &echopb.Message{})
				if st := status.Convert(err); st.Code() != codes.Code(test.code) || st.Message() != test.text || len(st.Details()) != test.details {
					t.Errorf("gRPC's client gets %v with the details %v", st, st.Details())
				}
			})
		}
	})
}

// TestErrorsOfServicesOfGRPC: in a server of Connect, too, gRPC's rule applies to gRPC's handlers.
func TestErrorsOfServicesOfGRPC(t *testing.T) {
	var fails error
	service := grpcEcho{unary: func(context.Context, *echopb.Message) (*echopb.Message, error) { return nil, fails }}
	plain, within := nearcall.NewServer(), nearcall.NewServer()
	echopb.RegisterEchoServer(plain, service)
	var services nearconnect.Services
	echopb.RegisterEchoServer(&services, service)
	nearconnect.Register(within, nearconnect.NewServer(&services))
	detailed, _ := status.New(codes.NotFound, "not here").WithDetails(wrapperspb.String("a"))
	for name, srv := range map[string]*nearcall.Server{"nearcall": plain, "Connect": within} {
		c := clientOf(connectTo(t, "inproc", srv))
		for _, test := range []struct {
			err     error
			code    connect.Code
			text    string
			details int
		}{
			{detailed.Err(), connect.CodeNotFound, "not here", 1},
			{errors.New("text"), connect.CodeUnknown, "text", 0},
			{context.Canceled, connect.CodeCanceled, "context canceled", 0},
		} {
			fails = test.err
			_, err := c.Unary(t.Context(), &echopb.Message{})
			if e := wantCode(t, err, test.code); e.Message() != test.text || len(e.Details()) != test.details || !e.IsRemote() {
				t.Errorf("in a server of %s the error %v becomes %#v", name, test.err, e)
			}
			if st := status.Convert(err); st.Code() != codes.Code(test.code) {
				t.Errorf("package status finds %v in Connect's error", st)
			}
		}
	}
}

func TestAPanicFailsTheCall(t *testing.T) {
	onEachPath(t, func(t *testing.T, path string) {
		c := clientOf(connectTo(t, path, serverOf(echo{
			unary: func(context.Context, *echopb.Message) (*echopb.Message, error) { panic("a test's") },
			chat:  func(context.Context, echopbconnect.EchoChatServerStream) error { panic("a test's") },
		})))
		for _, ctx := range []context.Context{context.Background(), t.Context()} {
			_, err := c.Unary(ctx, &echopb.Message{})
			wantCode(t, err, connect.CodeInternal)
			s, _ := c.Chat(ctx)
			_, err = s.Receive()
			wantCode(t, err, connect.CodeInternal)
		}
	})
}

// A panicking codec panics at the messages that ask for it.
type panicking struct{ encoding.CodecV2 }

func (panicking) Name() string { return "nearconnect-panics" }

func (c panicking) Marshal(v any) (mem.BufferSlice, error) {
	if m, ok := v.(*echopb.Message); ok && m.GetText() == "panic when it is encoded" {
		panic("a test's")
	}
	return c.CodecV2.Marshal(v)
}

func (c panicking) Unmarshal(b mem.BufferSlice, v any) error {
	if err := c.CodecV2.Unmarshal(b, v); err != nil {
		return err
	}
	if m, ok := v.(*echopb.Message); ok && m.GetText() == "panic when it is decoded" {
		panic("a test's")
	}
	return nil
}

// panickingOfConnect is the same as a codec of Connect.
type panickingOfConnect struct{ connect.Codec }

func (panickingOfConnect) Name() string { return "nearconnect-panics-too" }

func (c panickingOfConnect) MarshalWrite(ctx context.Context, dst io.Writer, v any) error {
	if m, ok := v.(*echopb.Message); ok && m.GetText() == "panic when it is encoded" {
		panic("a test's")
	}
	return c.Codec.MarshalWrite(ctx, dst, v)
}

func (c panickingOfConnect) UnmarshalRead(ctx context.Context, src io.Reader, v any) error {
	if err := c.Codec.UnmarshalRead(ctx, src, v); err != nil {
		return err
	}
	if m, ok := v.(*echopb.Message); ok && m.GetText() == "panic when it is decoded" {
		panic("a test's")
	}
	return nil
}

var (
	panicsOfGRPC    = panicking{CodecV2: encoding.GetCodecV2("proto")}
	panicsOfConnect = nearconnect.Codec(panickingOfConnect{connectproto.NewBinaryCodec()})
)

func init() {
	encoding.RegisterCodecV2(panicsOfGRPC)
	encoding.RegisterCodecV2(panicsOfConnect)
}

// Interceptors of gRPC make a difference to how the request is decoded.
func TestAPanicOfACodecFailsTheCall(t *testing.T) {
	for name, opts := range map[string][]nearcall.ServerOption{
		"plain": nil, "with an interceptor": {nearcall.UnaryInterceptor(func(ctx context.Context, in any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			return next(ctx, in)
		})},
	} {
		t.Run(name, func(t *testing.T) {
			onEachPath(t, func(t *testing.T, path string) {
				reply := func(_ context.Context, m *echopb.Message) (*echopb.Message, error) {
					return &echopb.Message{Text: "panic when it is " + strings.TrimPrefix(m.GetText(), "reply ")}, nil
				}
				srv := nearcall.NewServer(opts...)
				server := connect.NewServer()
				echopbconnect.RegisterEchoHandler(server, echo{unary: reply})
				nearconnect.Register(srv, server)
				conn := connectTo(t, path, srv)
				conns := map[string]grpc.ClientConnInterface{"nearcall": conn}
				if address, ok := strings.CutPrefix(conn.Target(), "tcp:"); ok {
					cc, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
					if err != nil {
						t.Fatal(err)
					}
					defer cc.Close()
					conns["grpc-go"] = cc
				}
				for client, conn := range conns {
					for _, c := range []encoding.CodecV2{panicsOfGRPC, panicsOfConnect} {
						if client == "grpc-go" && c == encoding.CodecV2(panicsOfGRPC) {
							continue // grpc-go encodes with it, and as in grpc-go a panic ends the process
						}
						for _, ctx := range []context.Context{context.Background(), t.Context()} {
							for _, text := range []string{"reply encoded", "panic when it is decoded"} {
								_, err := clientOf(conn, grpc.ForceCodecV2(c)).Unary(ctx, &echopb.Message{Text: text})
								if e := wantCode(t, err, connect.CodeInternal); e == nil {
									t.Errorf("%s, %s, %q: %v", client, c.Name(), text, err)
								}
							}
						}
					}
				}
			})
		})
	}
}

func TestErrorsOfTheConnectionAreLocal(t *testing.T) {
	conn, err := nearcall.NewClient("inproc:nobody")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := clientOf(conn)
	_, err = c.Unary(t.Context(), &echopb.Message{})
	if e := wantCode(t, err, connect.CodeUnavailable); e.IsRemote() {
		t.Error("nobody was called, and the error counts as remote")
	}
	s, _ := c.Chat(t.Context())
	err = s.SendHeaders()
	if e := wantCode(t, err, connect.CodeUnavailable); e.IsRemote() {
		t.Error("nobody was called, and the error counts as remote")
	}
	if _, again := s.Receive(); again != err {
		t.Errorf("then Receive returns %v", again)
	}
}

// TestErrorsOfTheCallersSideAreLocal: what the caller's side makes of an answer, or of a lost connection,
// is not the callee's verdict. A handler that passes it on passes its text on.
func TestErrorsOfTheCallersSideAreLocal(t *testing.T) {
	onEachPath(t, func(t *testing.T, path string) {
		begun := make(chan struct{})
		srv := serverOf(echo{
			unary: func(_ context.Context, m *echopb.Message) (*echopb.Message, error) {
				if m.GetNumber() == 1 {
					return nil, connect.NewError(connect.CodeNotFound, "no such thing")
				}
				return &echopb.Message{Text: strings.Repeat("x", 1000)}, nil
			},
			chat: func(ctx context.Context, s echopbconnect.EchoChatServerStream) error {
				m, err := s.Receive()
				switch {
				case err != nil:
					return err
				case m.GetNumber() == 1:
					return connect.NewError(connect.CodeNotFound, "no such thing")
				case m.GetNumber() == 2:
					return s.Send(&echopb.Message{Text: strings.Repeat("x", 1000)})
				}
				if err := s.Send(m); err != nil {
					return err
				}
				close(begun)
				<-ctx.Done()
				return ctx.Err()
			},
		})
		c := clientOf(connectTo(t, path, srv), grpc.MaxCallRecvMsgSize(500))
		want := func(what string, err error, code connect.Code, remote bool) {
			t.Helper()
			if e := wantCode(t, err, code); e != nil && e.IsRemote() != remote {
				t.Errorf("%s: %v counts as remote: %v", what, err, e.IsRemote())
			}
		}
		for _, ctx := range []context.Context{context.Background(), t.Context()} {
			_, err := c.Unary(ctx, &echopb.Message{Number: 1})
			want("a handler's error", err, connect.CodeNotFound, true)
			_, err = c.Unary(ctx, &echopb.Message{})
			want("a large reply", err, connect.CodeResourceExhausted, false)
			for number, remote := range map[int64]bool{1: true, 2: false} {
				s, _ := c.Chat(ctx)
				if err := s.Send(&echopb.Message{Number: number}); err != nil {
					t.Fatal(err)
				}
				_, err := s.Receive()
				code := connect.CodeNotFound
				if number == 2 {
					code = connect.CodeResourceExhausted
				}
				want("a stream's error", err, code, remote)
				_ = s.Close()
			}
		}

		s, _ := c.Chat(t.Context())
		if err := s.Send(&echopb.Message{}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Receive(); err != nil {
			t.Fatal(err)
		}
		<-begun
		srv.Stop()
		_, err := s.Receive()
		want("the end of the server", err, connect.CodeUnavailable, false)
	})
}

// TestAStreamGoesOnWithoutAMessageThatCannotBeSent, on both sides: text that is not UTF-8, and too large.
func TestAStreamGoesOnWithoutAMessageThatCannotBeSent(t *testing.T) {
	bad := []*echopb.Message{{Text: "\xff"}, {Text: strings.Repeat("x", 1000)}}
	codesOf := []connect.Code{connect.CodeInternal, connect.CodeResourceExhausted}
	onEachPath(t, func(t *testing.T, path string) {
		refused := func(send func(*echopb.Message) error) {
			for i, m := range bad {
				if err := send(m); connect.CodeOf(err) != codesOf[i] {
					t.Errorf("Send of %.10q returns %v", m.GetText(), err)
				}
			}
		}
		for _, header := range []bool{false, true} {
			srv := nearcall.NewServer(nearcall.MaxSendMsgSize(500))
			server := connect.NewServer()
			echopbconnect.RegisterEchoHandler(server, echo{
				chat: func(_ context.Context, s echopbconnect.EchoChatServerStream) error {
					if header {
						if err := s.SendHeaders(); err != nil {
							return err
						}
					}
					refused(s.Send)
					return chat(s.Receive, s.Send)
				},
				count: func(_ context.Context, m *echopb.Message, s echopbconnect.EchoCountServerStream) error {
					refused(s.Send)
					return s.Send(m)
				},
			})
			nearconnect.Register(srv, server)
			c := clientOf(connectTo(t, path, srv), grpc.MaxCallSendMsgSize(500))
			s, _ := c.Chat(t.Context())
			if header {
				if err := s.SendHeaders(); err != nil {
					t.Fatal(err)
				}
			}
			for n := range 3 {
				refused(s.Send)
				if err := s.Send(&echopb.Message{Number: int64(n)}); err != nil {
					t.Fatal(err)
				}
				if m, err := s.Receive(); err != nil || m.GetNumber() != int64(n) {
					t.Fatalf("the answer to message %d is %v, %v", n, m, err)
				}
			}
			if err := s.CloseSend(); err != nil {
				t.Error(err)
			}
			if _, err := s.Receive(); err != io.EOF {
				t.Errorf("the stream ends with %v", err)
			}
			o, err := c.Count(t.Context(), &echopb.Message{Number: 7})
			if err != nil {
				t.Fatal(err)
			}
			if m, err := o.Receive(); err != nil || m.GetNumber() != 7 {
				t.Errorf("Count returns %v, %v", m, err)
			}
			_ = o.Close()
		}
	})
}

func TestUnknownProcedures(t *testing.T) {
	ping := connect.Spec{Procedure: "/nobodys.Service/Ping"}
	onEachPath(t, func(t *testing.T, path string) {
		call := func(srv *nearcall.Server, spec connect.Spec) (*echopb.Message, error) {
			var reply echopb.Message
			client := connect.NewClient(nearconnect.NewTransport(connectTo(t, path, srv)))
			err := client.CallUnary(t.Context(), spec, &echopb.Message{Number: 3}, &reply)
			return &reply, err
		}
		_, err := call(serverOf(echo{}), ping)
		wantCode(t, err, connect.CodeUnimplemented)
		server := connect.NewServer()
		echopbconnect.RegisterEchoHandler(server, echo{})
		with := func() *nearcall.Server {
			srv := nearcall.NewServer(nearcall.UnknownServiceHandler(nearconnect.UnknownHandler(server)))
			nearconnect.Register(srv, server)
			return srv
		}
		_, err = call(with(), ping)
		wantText(t, "the message", wantCode(t, err, connect.CodeUnimplemented).Message(), `procedure "/nobodys.Service/Ping" not registered`)
		server.SetUnknownHandler(func(_ context.Context, spec connect.Spec, s connect.ServerStream) error {
			var m echopb.Message
			if err := s.Receive(&m); err != nil {
				return err
			}
			return s.Send(&echopb.Message{Number: m.GetNumber(), Text: spec.Procedure})
		})
		for _, spec := range []connect.Spec{ping, {Procedure: "/nearcall.connect.echo.v1.Echo/Another"}} {
			reply, err := call(with(), spec)
			if err != nil || reply.GetNumber() != 3 || reply.GetText() != spec.Procedure {
				t.Errorf("%s returns %v and %v", spec.Procedure, reply, err)
			}
		}
	})
}
