package web_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall/internal/leak"
)

// readAnswer reads an answer from a connection.
func readAnswer(t *testing.T, in *bufio.Reader) answer {
	t.Helper()
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Close {
		resp.Header.Set("Connection", "close")
	}
	return answer{resp.StatusCode, resp.Header, string(b)}
}

func TestGracefulStopWaitsForRunningRequests(t *testing.T) {
	begun, finish := make(chan struct{}, 2), make(chan struct{})
	s := start(t, &service{
		unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			begun <- struct{}{}
			<-finish
			return &testpb.SimpleResponse{Payload: body(1)}, nil
		},
		output: func(_ *testpb.StreamingOutputCallRequest, out grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
			_ = out.Send(&testpb.StreamingOutputCallResponse{})
			begun <- struct{}{}
			<-finish
			return out.Send(&testpb.StreamingOutputCallResponse{Payload: body(1)})
		},
	})
	idle := s.dial()
	_, _ = io.WriteString(idle, head("EmptyCall", "Content-Length: 2")+"{}")
	idling := bufio.NewReader(idle)
	readAnswer(t, idling)
	busy := s.dial()
	_, _ = io.WriteString(busy, head("UnaryCall", "Content-Length: 2")+"{}")
	streaming := s.dial()
	_, _ = io.WriteString(streaming, strings.Replace(head("StreamingOutputCall", "Content-Length: 7"), "json", "connect+json", 1)+wrap(0, "{}"))
	<-begun
	<-begun
	stopped := make(chan struct{})
	go func() {
		s.server.GracefulStop()
		close(stopped)
	}()
	if b, err := io.ReadAll(idling); err != nil || len(b) > 0 {
		t.Errorf("the idle connection gets %q, %v", b, err)
	}
	leak.AwaitBlocked(t, "chan receive", "call.(*Server).GracefulStop(") // all connections drain
	close(finish)
	a := readAnswer(t, bufio.NewReader(busy))
	if a.want(t, 200, `"body"`); a.header.Get("Connection") != "close" {
		t.Errorf("%v", a.header)
	}
	a = readAnswer(t, bufio.NewReader(streaming))
	if parts := unwrap(t, a.body); len(parts) != 3 || parts[2] != (envelope{2, "{}"}) {
		t.Errorf("%q", parts)
	}
	<-stopped
}

func TestStopCutsRequestsOff(t *testing.T) {
	begun := make(chan struct{}, 1)
	s := start(t, &service{
		unary: func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			begun <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		},
	})
	conn := s.dial()
	_, _ = io.WriteString(conn, head("UnaryCall", "Content-Length: 2")+"{}")
	<-begun
	s.server.Stop()
	readAnswer(t, bufio.NewReader(conn)).want(t, 503, `{"code":"unavailable","message":"the server was stopped"}`)
}

// TestGracefulStopDoesNotWaitForAClientThatReadsNothing: the answer is larger than what the
// system keeps for the client.
func TestGracefulStopDoesNotWaitForAClientThatReadsNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for five seconds")
	}
	t.Parallel()
	begun := make(chan struct{}, 1)
	s := start(t, &service{
		unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			begun <- struct{}{}
			return &testpb.SimpleResponse{Payload: body(32 << 20)}, nil
		},
	})
	conn := s.dial()
	_, _ = io.WriteString(conn, strings.Replace(head("UnaryCall", "Content-Length: 0"), "json", "proto", 1))
	<-begun
	began := time.Now()
	s.server.GracefulStop()
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("GracefulStop took %v", took)
	}
}

// TestGracefulStopDoesNotWaitForARequestThatHasNotArrived: its call has not begun, or waits
// for a message.
func TestGracefulStopDoesNotWaitForARequestThatHasNotArrived(t *testing.T) {
	for name, c := range map[string]struct{ text, waits string }{
		"nothing":       {"", "sock.Options.readFirst("},
		"a line":        {"POST / HTTP/1.1\r\n", "net/http.(*conn).readRequest("},
		"no small body": {head("UnaryCall", "Content-Length: 2"), "web.(*stream).readSmall("},
		"half of it":    {head("UnaryCall", "Content-Length: 2") + "{", "web.(*stream).readSmall("},
	} {
		s := start(t, &service{})
		conn := s.dial()
		_, _ = io.WriteString(conn, c.text)
		leak.AwaitBlocked(t, "IO wait", c.waits)
		began := time.Now()
		s.server.GracefulStop()
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("%s: GracefulStop took %v", name, took)
		}
	}
}
