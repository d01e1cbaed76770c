package web_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
)

// talk opens a connection, writes text, and returns what it reads until the server closes
// the connection.
func (s *site) talk(text string) string {
	s.Helper()
	conn := s.dial()
	if _, err := io.WriteString(conn, text); err != nil {
		s.Fatal(err)
	}
	b, err := io.ReadAll(conn)
	if err != nil {
		s.Errorf("after %q: %v", b, err)
	}
	return string(b)
}

// dial opens a connection that is closed at the end of the test. Its reads end after a
// time in which every answer has come.
func (s *site) dial() net.Conn {
	s.Helper()
	conn, err := net.Dial("tcp", s.lis.Addr().String())
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	return conn
}

// shout sends a request that the server need not read to its end, and returns the answer.
func (s *site) shout(text string) answer {
	s.Helper()
	conn := s.dial()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _ = io.WriteString(conn, text)
	}()
	a := readAnswer(s.T, bufio.NewReader(conn))
	_ = conn.Close()
	<-sent
	return a
}

// head returns the head of a request with JSON.
func head(method string, header ...string) string {
	lines := append([]string{"POST " + path + method + " HTTP/1.1", "Host: localhost", "Content-Type: application/json"}, header...)
	return strings.Join(append(lines, "", ""), "\r\n")
}

func TestMessagesOverTheLimitAreRefusedWithAStatus(t *testing.T) {
	s := start(t, &service{})
	large := `{"payload":{"body":"` + strings.Repeat("A", 5<<20) + `"}}`
	s.shout(head("UnaryCall", fmt.Sprintf("Content-Length: %d", len(large)))+large).want(t, 429, "larger than max (5242903 vs. 4194304)")
	s.shout(head("UnaryCall", "Transfer-Encoding: chunked")+fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(large), large)).want(t, 429, "larger than max")

	for _, kind := range []string{"application/connect+proto", "application/grpc-web"} {
		a := s.do("POST", s.url+"StreamingInputCall", "\x00\x7f\xff\xff\xff", "Content-Type", kind)
		if !strings.Contains(a.body, "larger than max (2147483647 vs. 4194304)") {
			t.Errorf("%s: %q", kind, a.body)
		}
	}
	bomb := squeeze(t, strings.Repeat(" ", 6<<20)+"{}")
	s.post("UnaryCall", bomb, "Content-Encoding", "gzip").want(t, 429, "after decompression larger than max 4194304")
}

func TestAHeaderOverTheLimitIsRefused(t *testing.T) {
	s := start(t, &service{}, nearcall.MaxHeaderListSize(16<<10))
	a := s.talk(head("UnaryCall", "X: "+strings.Repeat("x", 30<<10)))
	if !strings.HasPrefix(a, "HTTP/1.1 431 ") {
		t.Errorf("%q", a)
	}
}

// TestAmbiguousRequestsAreRefused: such requests let a client
// smuggle one past a proxy.
func TestAmbiguousRequestsAreRefused(t *testing.T) {
	calls := make(chan string, 10)
	s := start(t, &service{unary: func(_ context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		calls <- in.String()
		return &testpb.SimpleResponse{}, nil
	}})
	for name, text := range map[string]string{
		"two lengths":          head("UnaryCall", "Content-Length: 2", "Content-Length: 3") + "{}",
		"a length that is not": head("UnaryCall", "Content-Length: +2") + "{}",
		"unknown coding":       head("UnaryCall", "Transfer-Encoding: chunked, identity") + "2\r\n{}\r\n0\r\n\r\n",
		"a folded name":        "POST / HTTP/1.1\r\nHost : localhost\r\n\r\n",
		"no host":              "POST " + path + "UnaryCall HTTP/1.1\r\n\r\n",
		"HTTP/2":               "POST " + path + "UnaryCall HTTP/2.0\r\nHost: localhost\r\n\r\n",
	} {
		if a := s.talk(text); !strings.HasPrefix(a, "HTTP/1.1 4") && !strings.HasPrefix(a, "HTTP/1.1 5") || strings.Count(a, "HTTP/1.1 ") != 1 {
			t.Errorf("%s: %q", name, a)
		}
	}
	for name, body := range map[string]string{
		"no size":          "x\r\n{}\r\n0\r\n\r\n",
		"too large a size": "ffffffffffffffff0\r\n{}",
		"a short chunk":    "1\r\n{}\r\n0\r\n\r\n",
	} {
		if a := s.talk(head("UnaryCall", "Transfer-Encoding: chunked") + body); !strings.HasPrefix(a, "HTTP/1.1 500 ") || !strings.Contains(a, "Connection: close\r\n") {
			t.Errorf("%s: %q", name, a)
		}
	}
	if len(calls) > 0 {
		t.Errorf("a handler was called: %s", <-calls)
	}
}

// TestAConnectionEndsAfterARequestWithTwoLengths: a proxy may have read its body differently,
// and take what follows for a part of it.
func TestAConnectionEndsAfterARequestWithTwoLengths(t *testing.T) {
	s := start(t, &service{})
	chunks := "2\r\n{}\r\n0\r\n\r\n"
	plain := head("UnaryCall", "Content-Length: 2") + "{}"
	chunked := head("UnaryCall", "Transfer-Encoding: chunked") + chunks
	smuggled := strings.Repeat(plain, 3)
	for name, twice := range map[string]string{
		"Content-Length first":   head("UnaryCall", "Content-Length: 2", "Transfer-Encoding: chunked") + chunks,
		"Content-Length last":    head("UnaryCall", "Transfer-Encoding: chunked", "Content-Length: 2") + chunks,
		"lines that end in LF":   strings.ReplaceAll(head("UnaryCall", "Transfer-Encoding: chunked", "Content-Length: 2"), "\r", "") + chunks,
		"capitals":               head("UnaryCall", "Transfer-Encoding: chunked", "CONTENT-length: 2") + chunks,
		"far into the header":    head("UnaryCall", "Transfer-Encoding: chunked", "X: "+strings.Repeat("x", 20_000), "Content-Length: 2", "Y: "+strings.Repeat("y", 20_000)) + chunks,
		"a stream":               strings.Replace(head("FullDuplexCall", "Content-Length: 2", "Transfer-Encoding: chunked"), "json", "grpc-web+json", 1) + "7\r\n" + wrap(0, "{}") + "\r\n0\r\n\r\n",
		"a type that is unknown": strings.Replace(head("UnaryCall", "Content-Length: 2", "Transfer-Encoding: chunked"), "json", "xml", 1) + chunks,
	} {
		for before, text := range map[string]string{"first": "", "after a plain one": plain, "after one in chunks": chunked, "after many": strings.Repeat(plain, 20) + strings.Repeat(chunked, 20)} {
			for _, c := range []struct {
				how   string
				waits bool // for the answers before
				size  int  // of what is written at a time
			}{{"at once", false, 1 << 20}, {"in turn", true, 1 << 20}, {"in parts", true, 100}} {
				conn := s.dial()
				in := bufio.NewReader(conn)
				requests := strings.Count(text, "POST ")
				send := func(text string) {
					go func() { // the server may close the connection before it has read all
						for ; text != ""; text = text[min(c.size, len(text)):] {
							if _, err := io.WriteString(conn, text[:min(c.size, len(text))]); err != nil {
								return
							}
						}
					}()
				}
				if c.waits {
					if requests > 2 {
						continue // it may end sooner
					}
					send(text)
					for range requests {
						readAnswer(t, in)
					}
					send(twice + smuggled)
				} else {
					send(text + twice + smuggled)
				}
				b, err := io.ReadAll(in)
				want := 1
				if !c.waits {
					want += requests
				}
				// If a client does not wait, a connection may end after an honest request in chunks.
				if got := strings.Count(string(b), "HTTP/1.1 "); err != nil || got > want || c.waits && got != want || strings.Count(string(b), "Connection: close\r\n") != 1 {
					t.Errorf("%s, %s, %s: %d answers, not %d, %v: %q", name, before, c.how, got, want, err, b)
				}
			}
		}
	}
}

// TestAConnectionStaysAfterARequestInChunks that has no other length.
func TestAConnectionStaysAfterARequestInChunks(t *testing.T) {
	s := start(t, &service{})
	conn := s.dial()
	in := bufio.NewReader(conn)
	plain := head("UnaryCall", "Content-Length: 2") + "{}"
	chunked := head("UnaryCall", "Transfer-Encoding: chunked") + "2\r\n{}\r\n0\r\n\r\n"
	for _, text := range []string{plain, chunked, chunked, plain, chunked, chunked + chunked} {
		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}
		for range strings.Count(text, "POST ") {
			if a := readAnswer(t, in); a.code != 200 || a.header.Get("Connection") != "" {
				t.Errorf("%d, %v, %s", a.code, a.header, a.body)
			}
		}
	}
}

// TestAnUnreadBodyIsNoRequest: what follows an answer that did not wait for the body is not
// understood as a request.
func TestAnUnreadBodyIsNoRequest(t *testing.T) {
	s := start(t, &service{})
	smuggled := head("UnaryCall", "Content-Length: 2") + "{}"
	for _, method := range []string{"NoSuch", "UnaryCall"} {
		for _, kind := range []string{"text/plain", "application/connect+json", "application/grpc-web"} {
			text := strings.Replace(head(method, "Transfer-Encoding: chunked"), "application/json", kind, 1) + "5\r\n\x00\xff\xff\xff\xff\r\nffff\r\n" + smuggled
			if a := s.talk(text + strings.Repeat(smuggled, 100)); strings.Count(a, "HTTP/1.1 ") != 1 {
				t.Errorf("%s of %s: %q", method, kind, a)
			}
		}
	}
}

func TestAClientThatLeavesCancelsItsCall(t *testing.T) {
	// A call whose client has left before its handler begins may get no handler.
	begun, ended := make(chan struct{}, 1), make(chan error, 1)
	s := start(t, &service{
		unary: func(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			begun <- struct{}{}
			<-ctx.Done()
			ended <- ctx.Err()
			return nil, ctx.Err()
		},
		input: func(in grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]) error {
			begun <- struct{}{}
			_, err := in.Recv()
			ended <- err
			return err
		},
	})
	conn := s.dial()
	_, _ = io.WriteString(conn, head("UnaryCall", "Content-Length: 2")+"{}")
	<-begun
	_ = conn.Close()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the handler's context has ended with %v", err)
	}
	for _, partial := range []string{"", "5\r\n\x00\x00", "5\r\n\x00\x00\x00\x00\x05\r\n"} {
		conn := s.dial()
		_, _ = io.WriteString(conn, strings.Replace(head("StreamingInputCall", "Transfer-Encoding: chunked"), "json", "grpc-web", 1)+partial)
		<-begun
		_ = conn.Close()
		if err := <-ended; status.Code(err) != codes.Canceled {
			t.Errorf("after %q the handler receives %v", partial, err)
		}
	}
}

func TestACallEndsAtItsDeadline(t *testing.T) {
	left := make(chan struct{}, 10)
	s := start(t, &service{
		unary: func(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			defer func() { left <- struct{}{} }()
			<-ctx.Done()
			if ctx.Err() != context.DeadlineExceeded {
				t.Errorf("the context ends with %v", ctx.Err())
			}
			return nil, ctx.Err()
		},
	})
	s.post("UnaryCall", "{}", "Connect-Timeout-Ms", "20").want(t, 504, "deadline_exceeded")
	<-left
	// The body does not arrive, whether it is small or large.
	for _, body := range []string{"Content-Length: 2", "Content-Length: 200000", "Transfer-Encoding: chunked"} {
		if a := s.talk(head("UnaryCall", body, "Connect-Timeout-Ms: 20")); !strings.HasPrefix(a, "HTTP/1.1 504 ") || !strings.Contains(a, "Connection: close\r\n") {
			t.Errorf("%s: %q", body, a)
		}
	}
}
