package web_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/leak"
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
	leak.AwaitBlocked(t, "chan receive", "server.(*Server).GracefulStop(") // all connections drain
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

// TestGracefulStopSkipsUnarrivedRequest: its call has not begun, or waits
// for the rest of its message. If the client knows that it is a call, it learns that another
// server may take it.
func TestGracefulStopSkipsUnarrivedRequest(t *testing.T) {
	const unavailable = `{"code":"unavailable","message":"the server is stopping, and the rest of the request has not arrived"}`
	as := func(contentType, text string) string {
		return strings.Replace(text, "application/json", contentType, 1)
	}
	for name, c := range map[string]struct{ text, want string }{
		"nothing":                 {"", ""},
		"a line":                  {"POST / HTTP/1.1\r\n", ""},
		"no small body":           {head("UnaryCall", "Content-Length: 2"), unavailable},
		"half of it":              {head("UnaryCall", "Content-Length: 2") + "{", unavailable},
		"no large body":           {head("UnaryCall", "Content-Length: 200000"), unavailable},
		"half of it, in a chunk":  {head("UnaryCall", "Transfer-Encoding: chunked") + "1\r\n{\r\n", unavailable},
		"half a message":          {as("application/grpc-web", head("UnaryCall", "Content-Length: 7")) + wrap(0, "{}")[:6], "grpc-status: 14"},
		"half a text":             {as("application/grpc-web-text", head("UnaryCall", "Content-Length: 8")) + "AAAA", base64.StdEncoding.EncodeToString([]byte("\x80"))[:2]},
		"a message, half the end": {as("application/grpc-web", head("UnaryCall", "Transfer-Encoding: chunked")) + "5\r\n" + wrap(0, "") + "\r\n", "grpc-status: 14"},
		"no such method":          {head("NoSuch", "Content-Length: 2"), "unimplemented"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv, l := serve(t, newAnswers())
				client, sent := l.dial(c.text)
				<-sent
				synctest.Wait()
				answer := make(chan string)
				go func() {
					b, _ := io.ReadAll(client)
					answer <- string(b)
				}()
				began := time.Now()
				go srv.GracefulStop()
				if got := <-answer; !strings.Contains(got, c.want) || c.want == "" && got != "" {
					t.Errorf("%q, want %q", got, c.want)
				}
				srv.GracefulStop()
				if took := time.Since(began); took > 2*5*time.Second {
					t.Errorf("GracefulStop took %v", took)
				}
			})
		})
	}
}

// TestGracefulStopWaitsForARequestThatArrivesSlowly: in bytes, less than five seconds apart.
func TestGracefulStopWaitsForARequestThatArrivesSlowly(t *testing.T) {
	for _, a := range asks() {
		if a.code != 200 && a.code != 500 || strings.HasSuffix(a.name, "open") || strings.Contains(a.name, "no such method") {
			continue // no handler has to wait
		}
		t.Run(a.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv, l := serve(t, newAnswers())
				headed := strings.Index(a.text, "\r\n\r\n") + 4
				client, sent := l.dial(a.text[:headed])
				<-sent
				synctest.Wait()
				stopped := make(chan struct{})
				go func() {
					srv.GracefulStop()
					close(stopped)
				}()
				synctest.Wait()
				go func() {
					for _, b := range []byte(a.text[headed:]) {
						time.Sleep(4 * time.Second)
						if _, err := client.Write([]byte{b}); err != nil {
							t.Error(err)
							return
						}
					}
				}()
				resp, err := http.ReadResponse(bufio.NewReader(client), nil)
				if err != nil {
					t.Fatal(err)
				}
				b, err := io.ReadAll(resp.Body)
				if err != nil || resp.StatusCode != a.code || len(b) == 0 || strings.Contains(string(b), "unavailable") || strings.Contains(string(b), "grpc-status: 14") {
					t.Errorf("%s, %d bytes: %.300q, %v", resp.Status, len(b), b, err)
				}
				_ = client.Close()
				<-stopped
			})
		})
	}
}

// TestGracefulStopWaitsForAHandlerThatDoesNotReceive: its client cannot send more meanwhile.
func TestGracefulStopWaitsForAHandlerThatDoesNotReceive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		size := make(chan int, 1)
		srv, l := serve(t, newAnswers(), nearcall.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
			time.Sleep(time.Minute)
			in := new(testpb.SimpleRequest)
			if err := s.RecvMsg(in); err != nil {
				return err
			}
			size <- len(in.GetPayload().GetBody())
			return s.SendMsg(&testpb.SimpleResponse{})
		}))
		message := encode(t, &testpb.SimpleRequest{Payload: body(500_000)})
		client, sent := l.dial(strings.Replace(head("Other", fmt.Sprintf("Content-Length: %d", len(message))), "json", "proto", 1) + message)
		synctest.Wait()
		go srv.GracefulStop()
		readAnswer(t, bufio.NewReader(client)).want(t, 200, "")
		if n := <-size; n != 500_000 {
			t.Errorf("the handler gets %d bytes", n)
		}
		<-sent
		srv.GracefulStop()
	})
}

// TestStopDoesNotWaitForARequestThatArrives: its call fails so that it can be made again.
func TestStopDoesNotWaitForARequestThatArrives(t *testing.T) {
	for _, text := range []string{head("UnaryCall", "Content-Length: 2") + "{", head("UnaryCall", "Content-Length: 200000") + "{"} {
		synctest.Test(t, func(t *testing.T) {
			srv, l := serve(t, newAnswers())
			client, sent := l.dial(text)
			<-sent
			synctest.Wait()
			began := time.Now()
			go srv.Stop()
			b, err := io.ReadAll(client)
			if took := time.Since(began); took > 0 || err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 503 ") || !strings.Contains(string(b), `"unavailable"`) {
				t.Errorf("after %v: %q, %v", took, b, err)
			}
		})
	}
}

// TestGracefulStopWaitsForASlowClient whose reply fills what the system keeps for it. The
// server's system wakes a write only when a third of that is free.
func TestGracefulStopWaitsForASlowClient(t *testing.T) {
	if testing.Short() {
		t.Skip("reads for eight seconds")
	}
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells how much its peer has received")
	}
	t.Parallel()
	const size = 8 << 20
	svc := &service{
		unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			return &testpb.SimpleResponse{Payload: body(size)}, nil
		},
		output: func(_ *testpb.StreamingOutputCallRequest, out grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
			return out.Send(&testpb.StreamingOutputCallResponse{Payload: body(size)})
		},
	}
	secured := httptest.NewTLSServer(nil)
	certificate := secured.TLS.Certificates[0]
	secured.Close()
	plain := start(t, svc)
	private := start(t, svc, nearcall.Creds(nearcall.NewTLS(&tls.Config{Certificates: []tls.Certificate{certificate}})))
	type client struct {
		name     string
		conn     net.Conn
		received int64
	}
	var all []*client
	for _, c := range []struct{ contentType, method, body string }{
		{"application/proto", "UnaryCall", ""},
		{"application/json", "UnaryCall", "{}"},
		{"application/grpc-web", "UnaryCall", wrap(0, "")},
		{"application/grpc-web-text", "UnaryCall", "AAAAAAA="},
		{"application/connect+proto", "StreamingOutputCall", wrap(0, "")},
	} {
		for _, s := range []*site{plain, private} {
			conn := s.dial()
			_ = conn.SetDeadline(time.Now().Add(2 * time.Minute))
			_ = conn.(*net.TCPConn).SetReadBuffer(64 << 10)
			name := c.contentType
			if s == private {
				conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
				name += " over TLS"
			}
			_, err := io.WriteString(conn, strings.Replace(head(c.method, fmt.Sprintf("Content-Length: %d", len(c.body))), "application/json", c.contentType, 1)+c.body)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, &client{name: name, conn: conn})
		}
	}
	for _, c := range all { // the answers have begun
		if _, err := io.ReadFull(c.conn, make([]byte, 100)); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
	}
	var stopped sync.WaitGroup
	stopped.Go(plain.server.GracefulStop)
	stopped.Go(private.server.GracefulStop)
	begun := time.Now()
	for _, c := range all {
		stopped.Go(func() {
			// A tenth of a megabyte in a second, also if this goroutine comes late: the client's system
			// acknowledges only each 64 KiB, and the server waits no more than five seconds for that.
			for d := time.Duration(0); d < 8*time.Second; d = time.Since(begun) {
				n, err := io.CopyN(io.Discard, c.conn, max(0, int64(d/(10*time.Microsecond))-c.received))
				if c.received += n; err != nil {
					t.Errorf("%s: after %d bytes and %v: %v", c.name, c.received, d, err)
					return
				}
				time.Sleep(100 * time.Millisecond)
			}
			n, err := io.Copy(io.Discard, c.conn)
			if c.received += n; err != nil || c.received < size {
				t.Errorf("%s: %d bytes, %v", c.name, c.received, err)
			}
		})
	}
	stopped.Wait()
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
