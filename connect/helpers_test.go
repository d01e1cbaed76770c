package nearconnect_test

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"connectrpc.com/connect/v2"
	"google.golang.org/grpc"

	"github.com/nearcall/nearcall"
	nearconnect "github.com/nearcall/nearcall/connect"
	"github.com/nearcall/nearcall/connect/internal/echopb"
	"github.com/nearcall/nearcall/connect/internal/echopb/echopbconnect"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

// onEachPath runs a test over each path.
func onEachPath(t *testing.T, test func(t *testing.T, path string)) {
	for _, path := range []string{"inproc", "shm", "unix", "tcp", "ws"} {
		t.Run(path, func(t *testing.T) { test(t, path) })
	}
}

// connectTo starts srv on a path and returns a connection to it.
func connectTo(t testing.TB, path string, srv *nearcall.Server, opts ...nearcall.DialOption) *nearcall.ClientConn {
	t.Helper()
	t.Cleanup(srv.Stop)
	var conn *nearcall.ClientConn
	if path == "inproc" {
		conn = srv.Client(opts...)
	} else {
		target := map[string]string{"tcp": "tcp:127.0.0.1:0", "ws": "ws://127.0.0.1:0/calls"}[path]
		if target == "" {
			needs.UnixSockets(t)
			if path == "shm" && runtime.GOOS != "linux" {
				t.Skip("shared memory exists on Linux only")
			}
			target = path + ":" + filepath.Join(t.TempDir(), "s")
		}
		lis, err := nearcall.Listen(target)
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- srv.Serve(lis) }()
		t.Cleanup(func() {
			srv.Stop()
			if err := <-served; err != nil && err != grpc.ErrServerStopped {
				t.Errorf("Serve: %v", err)
			}
		})
		if path == "unix" {
			opts = append(opts, nearcall.WithDisableSharedMemory())
		}
		if conn, err = nearcall.NewClient(lis.Target(), opts...); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// An echo is a service of Connect. The functions that are nil do what the .proto file says.
type echo struct {
	echopbconnect.UnimplementedEchoHandler
	unary func(context.Context, *echopb.Message) (*echopb.Message, error)
	sum   func(context.Context, echopbconnect.EchoSumServerStream) (*echopb.Message, error)
	count func(context.Context, *echopb.Message, echopbconnect.EchoCountServerStream) error
	chat  func(context.Context, echopbconnect.EchoChatServerStream) error
}

func (e echo) Unary(ctx context.Context, m *echopb.Message) (*echopb.Message, error) {
	if e.unary != nil {
		return e.unary(ctx, m)
	}
	return m, nil
}

func (e echo) Sum(ctx context.Context, s echopbconnect.EchoSumServerStream) (*echopb.Message, error) {
	if e.sum != nil {
		return e.sum(ctx, s)
	}
	return sumOf(s.Receive)
}

func (e echo) Count(ctx context.Context, m *echopb.Message, s echopbconnect.EchoCountServerStream) error {
	if e.count != nil {
		return e.count(ctx, m, s)
	}
	return countTo(m, s.Send)
}

func (e echo) Chat(ctx context.Context, s echopbconnect.EchoChatServerStream) error {
	if e.chat != nil {
		return e.chat(ctx, s)
	}
	return chat(s.Receive, s.Send)
}

// A grpcEcho is the same service with gRPC's generated code.
type grpcEcho struct {
	echopb.UnimplementedEchoServer
	unary func(context.Context, *echopb.Message) (*echopb.Message, error)
	chat  func(grpc.BidiStreamingServer[echopb.Message, echopb.Message]) error
}

func (e grpcEcho) Unary(ctx context.Context, m *echopb.Message) (*echopb.Message, error) {
	if e.unary != nil {
		return e.unary(ctx, m)
	}
	return m, nil
}

func (grpcEcho) Sum(s grpc.ClientStreamingServer[echopb.Message, echopb.Message]) error {
	sum, err := sumOf(s.Recv)
	if err != nil {
		return err
	}
	return s.SendAndClose(sum)
}

func (grpcEcho) Count(m *echopb.Message, s grpc.ServerStreamingServer[echopb.Message]) error {
	return countTo(m, s.Send)
}

func (e grpcEcho) Chat(s grpc.BidiStreamingServer[echopb.Message, echopb.Message]) error {
	if e.chat != nil {
		return e.chat(s)
	}
	return chat(s.Recv, s.Send)
}

func sumOf(receive func() (*echopb.Message, error)) (*echopb.Message, error) {
	sum := &echopb.Message{}
	for {
		m, err := receive()
		if err == io.EOF {
			return sum, nil
		}
		if err != nil {
			return nil, err
		}
		sum.Number += m.GetNumber()
		sum.Text += m.GetText()
	}
}

func countTo(m *echopb.Message, send func(*echopb.Message) error) error {
	for i := range m.GetNumber() {
		if err := send(&echopb.Message{Number: i + 1}); err != nil {
			return err
		}
	}
	return nil
}

func chat(receive func() (*echopb.Message, error), send func(*echopb.Message) error) error {
	for {
		m, err := receive()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := send(m); err != nil {
			return err
		}
	}
}

// serverOf returns a server of nearcall that serves e.
func serverOf(e echo, opts ...nearcall.ServerOption) *nearcall.Server {
	server := connect.NewServer()
	echopbconnect.RegisterEchoHandler(server, e)
	return newServer(server, opts...)
}

// clientOf returns Connect's client over conn.
func clientOf(conn grpc.ClientConnInterface, opts ...grpc.CallOption) echopbconnect.EchoClient {
	return echopbconnect.NewEchoClient(connect.NewClient(nearconnect.NewTransport(conn, opts...)))
}

func wantCode(t *testing.T, err error, want connect.Code) *connect.Error {
	t.Helper()
	e, ok := errors.AsType[*connect.Error](err)
	if !ok || e.Code() != want {
		t.Fatalf("the error is %#v (%v), want the code %v", err, err, want)
	}
	return e
}

func wantText(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s is %q, want %q", what, got, want)
	}
}

var long = strings.Repeat("x", 100<<10)

// newServer returns a server of nearcall that serves what is registered with server.
func newServer(server *connect.Server, opts ...nearcall.ServerOption) *nearcall.Server {
	srv := nearcall.NewServer(opts...)
	nearconnect.Register(srv, server)
	return srv
}
