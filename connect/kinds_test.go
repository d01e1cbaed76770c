package nearconnect_test

import (
	"context"
	"io"
	"testing"

	"connectrpc.com/connect/v2"
	"google.golang.org/grpc"

	"github.com/nearcall/nearcall"
	nearconnect "github.com/nearcall/nearcall/connect"
	"github.com/nearcall/nearcall/connect/internal/echopb"
)

// A caller makes calls of all kinds, with the generated code of Connect or of gRPC.
type caller struct {
	unary func(context.Context, *echopb.Message) (*echopb.Message, error)
	sum   func(context.Context, ...*echopb.Message) (*echopb.Message, error)
	count func(context.Context, *echopb.Message) (receive func() (*echopb.Message, error), err error)
	chat  func(context.Context) (chatter, error)
}

type chatter interface {
	Send(*echopb.Message) error
	CloseSend() error
	Recv() (*echopb.Message, error)
}

func connectCaller(conn grpc.ClientConnInterface) caller {
	c := clientOf(conn)
	return caller{
		unary: c.Unary,
		sum: func(ctx context.Context, all ...*echopb.Message) (*echopb.Message, error) {
			s, err := c.Sum(ctx)
			if err != nil {
				return nil, err
			}
			for _, m := range all {
				if err := s.Send(m); err != nil {
					return nil, err
				}
			}
			return s.CloseAndReceive()
		},
		count: func(ctx context.Context, m *echopb.Message) (func() (*echopb.Message, error), error) {
			s, err := c.Count(ctx, m)
			return s.Receive, err
		},
		chat: func(ctx context.Context) (chatter, error) {
			s, err := c.Chat(ctx)
			return connectChatter{s.Send, s.CloseSend, s.Receive}, err
		},
	}
}

type connectChatter struct {
	send      func(*echopb.Message) error
	closeSend func() error
	receive   func() (*echopb.Message, error)
}

func (c connectChatter) Send(m *echopb.Message) error   { return c.send(m) }
func (c connectChatter) CloseSend() error               { return c.closeSend() }
func (c connectChatter) Recv() (*echopb.Message, error) { return c.receive() }

func grpcCaller(conn grpc.ClientConnInterface) caller {
	c := echopb.NewEchoClient(conn)
	return caller{
		unary: func(ctx context.Context, m *echopb.Message) (*echopb.Message, error) { return c.Unary(ctx, m) },
		sum: func(ctx context.Context, all ...*echopb.Message) (*echopb.Message, error) {
			s, err := c.Sum(ctx)
			if err != nil {
				return nil, err
			}
			for _, m := range all {
				if err := s.Send(m); err != nil {
					return nil, err
				}
			}
			return s.CloseAndRecv()
		},
		count: func(ctx context.Context, m *echopb.Message) (func() (*echopb.Message, error), error) {
			s, err := c.Count(ctx, m)
			if err != nil {
				return nil, err
			}
			return s.Recv, nil
		},
		chat: func(ctx context.Context) (chatter, error) { return c.Chat(ctx) },
	}
}

// TestBothWorldsCallEachOther makes calls of all kinds with both clients, to handlers of both kinds.
func TestBothWorldsCallEachOther(t *testing.T) {
	callees := map[string]func() *nearcall.Server{
		"a service of Connect": func() *nearcall.Server { return serverOf(echo{}) },
		"a service of gRPC": func() *nearcall.Server {
			srv := nearcall.NewServer()
			echopb.RegisterEchoServer(srv, grpcEcho{})
			return srv
		},
		"a service of gRPC in a server of Connect": func() *nearcall.Server {
			var services nearconnect.Services
			echopb.RegisterEchoServer(&services, grpcEcho{})
			srv := nearcall.NewServer()
			nearconnect.Register(srv, nearconnect.NewServer(&services))
			return srv
		},
		"procedures that are not registered with nearcall": func() *nearcall.Server {
			var services nearconnect.Services
			echopb.RegisterEchoServer(&services, grpcEcho{})
			return nearcall.NewServer(nearcall.UnknownServiceHandler(nearconnect.UnknownHandler(nearconnect.NewServer(&services))))
		},
	}
	callers := map[string]func(grpc.ClientConnInterface) caller{"Connect": connectCaller, "gRPC": grpcCaller}
	onEachPath(t, func(t *testing.T, path string) {
		for callee, start := range callees {
			t.Run(callee, func(t *testing.T) {
				conn := connectTo(t, path, start())
				for name, caller := range callers {
					t.Run("called by "+name, func(t *testing.T) {
						testKinds(t, context.Background(), caller(conn))
						testKinds(t, t.Context(), caller(conn))
					})
				}
			})
		}
	})
}

func testKinds(t *testing.T, ctx context.Context, c caller) {
	reply, err := c.unary(ctx, &echopb.Message{Number: 1, Text: long})
	if err != nil || reply.GetNumber() != 1 || reply.GetText() != long {
		t.Errorf("Unary returns the number %d, %d bytes of text and %v", reply.GetNumber(), len(reply.GetText()), err)
	}
	reply, err = c.sum(ctx, &echopb.Message{Number: 1, Text: "a"}, &echopb.Message{Number: 2, Text: "b"}, &echopb.Message{Number: 3})
	if err != nil || reply.GetNumber() != 6 || reply.GetText() != "ab" {
		t.Errorf("Sum returns %v and %v", reply, err)
	}
	receive, err := c.count(ctx, &echopb.Message{Number: 100})
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(100) {
		if m, err := receive(); err != nil || m.GetNumber() != i+1 {
			t.Fatalf("message %d of Count is %v, and the error %v", i+1, m, err)
		}
	}
	for range 2 {
		if _, err := receive(); err != io.EOF {
			t.Errorf("after its last message Count returns %v", err)
		}
	}
	s, err := c.chat(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(10) {
		if err := s.Send(&echopb.Message{Number: i, Text: long}); err != nil {
			t.Fatal(err)
		}
		if m, err := s.Recv(); err != nil || m.GetNumber() != i || m.GetText() != long {
			t.Fatalf("message %d of Chat has the number %d and %d bytes of text, and the error is %v", i, m.GetNumber(), len(m.GetText()), err)
		}
	}
	if err := s.CloseSend(); err != nil {
		t.Error(err)
	}
	if _, err := s.Recv(); err != io.EOF {
		t.Errorf("after its last message Chat returns %v", err)
	}
}

// TestAServerOfBothKinds has a service of each kind, which clients of both kinds call over one connection.
func TestAServerOfBothKinds(t *testing.T) {
	onEachPath(t, func(t *testing.T, path string) {
		server := connect.NewServer()
		server.Register(connect.Method{
			Spec: connect.Spec{Procedure: "/another.Service/Twice", StreamType: connect.StreamTypeUnary}, // without a schema
			Handler: func(_ context.Context, _ connect.Spec, s connect.ServerStream) error {
				var m echopb.Message
				if err := s.Receive(&m); err != nil {
					return err
				}
				return s.Send(&echopb.Message{Number: 2 * m.GetNumber()})
			},
		})
		srv := nearcall.NewServer()
		echopb.RegisterEchoServer(srv, grpcEcho{})
		nearconnect.Register(srv, server)
		conn := connectTo(t, path, srv)
		testKinds(t, t.Context(), connectCaller(conn))
		var reply echopb.Message
		err := connect.NewClient(nearconnect.NewTransport(conn)).CallUnary(t.Context(), connect.Spec{Procedure: "/another.Service/Twice"}, &echopb.Message{Number: 21}, &reply)
		if err != nil || reply.GetNumber() != 42 {
			t.Errorf("Connect's client gets %v and %v", &reply, err)
		}
		reply.Number = 0
		if err := conn.Invoke(t.Context(), "/another.Service/Twice", &echopb.Message{Number: 4}, &reply); err != nil || reply.GetNumber() != 8 {
			t.Errorf("gRPC's client gets %v and %v", &reply, err)
		}
	})
}
