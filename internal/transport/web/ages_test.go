package web_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"

	"github.com/nearcall/nearcall"
)

// inTime runs f in a bubble, with a client of a server with some ages.
func inTime(t *testing.T, p keepalive.ServerParameters, svc *answers, f func(t *testing.T, client net.Conn, in *bufio.Reader)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		srv, l := serve(t, svc, nearcall.KeepaliveParams(p))
		client, sent := l.dial("")
		<-sent
		f(t, client, bufio.NewReader(client))
		_ = client.Close()
		srv.GracefulStop()
	})
}

// request sends a request and returns its answer, whose body must be read.
func request(t *testing.T, client net.Conn, in *bufio.Reader, text string) *http.Response {
	t.Helper()
	if _, err := io.WriteString(client, text); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// closes reports an error unless the server closes the connection after a time that is about d.
func closes(t *testing.T, in *bufio.Reader, d time.Duration) {
	t.Helper()
	began := time.Now()
	b, err := io.ReadAll(in)
	if took := time.Since(began); err != nil || len(b) > 0 || took < d-d/8 || took > d+d/8 {
		t.Errorf("%q, %v after %v, want nothing and an end after %v", b, err, took, d)
	}
}

func TestAnIdleConnectionIsClosed(t *testing.T) {
	for name, c := range map[string]struct {
		idle, want time.Duration
	}{
		"MaxConnectionIdle": {time.Minute, time.Minute},
		"by default":        {0, 2 * time.Minute},
	} {
		p := keepalive.ServerParameters{MaxConnectionIdle: c.idle}
		call := asks()[0].text
		t.Run(name, func(t *testing.T) {
			if c.idle > 0 { // otherwise the deadline of the first request comes first
				inTime(t, p, newAnswers(), func(t *testing.T, client net.Conn, in *bufio.Reader) {
					if _, err := io.WriteString(client, "POST "); err != nil {
						t.Fatal(err)
					}
					closes(t, in, c.want)
				})
			}
			inTime(t, p, newAnswers(), func(t *testing.T, client net.Conn, in *bufio.Reader) {
				for range 3 {
					time.Sleep(c.want / 2)
					if _, err := io.Copy(io.Discard, request(t, client, in, call).Body); err != nil {
						t.Fatal(err)
					}
				}
				closes(t, in, c.want)
			})
		})
	}
}

// slowStream answers with a message a second, for a minute.
func slowStream() *answers {
	a := newAnswers()
	a.output = func(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
		for range 60 {
			if err := s.Send(&testpb.StreamingOutputCallResponse{}); err != nil {
				return err
			}
			time.Sleep(time.Second)
		}
		return nil
	}
	return a
}

// streams are requests for that answer, and how an answer ends that was cut off.
func streams() map[string][2]string {
	all := make(map[string][2]string)
	for contentType, end := range map[string]string{
		"application/connect+proto": `{"error":{"code":"unavailable","message":"the connection reached MaxConnectionAge"}}`,
		"application/connect+json":  `{"error":{"code":"unavailable","message":"the connection reached MaxConnectionAge"}}`,
		"application/grpc-web":      "grpc-status: 14\r\ngrpc-message: the connection reached MaxConnectionAge\r\n",
		"application/grpc-web+json": "grpc-status: 14\r\ngrpc-message: the connection reached MaxConnectionAge\r\n",
	} {
		message := ""
		if strings.HasSuffix(contentType, "json") {
			message = "{}"
		}
		all[contentType] = [2]string{strings.Replace(head("StreamingOutputCall", fmt.Sprintf("Content-Length: %d", 5+len(message))), "application/json", contentType, 1) + wrap(0, message), end}
	}
	return all
}

// TestAgeAndGraceEndCalls: after its age and the grace a connection ends, whatever its calls do.
func TestAgeAndGraceEndCalls(t *testing.T) {
	for name, c := range streams() {
		t.Run(name, func(t *testing.T) {
			for _, grace := range []time.Duration{10 * time.Second, 0} {
				p := keepalive.ServerParameters{MaxConnectionAge: 20 * time.Second, MaxConnectionAgeGrace: grace}
				inTime(t, p, slowStream(), func(t *testing.T, client net.Conn, in *bufio.Reader) {
					began := time.Now()
					b, err := io.ReadAll(request(t, client, in, c[0]).Body)
					took := time.Since(began)
					cut := strings.HasSuffix(string(b), c[1])
					if grace > 0 && (err != nil || !cut || took < 28*time.Second || took > 32*time.Second) {
						t.Errorf("with a grace the answer ends after %v, %v: %q", took, err, b)
					}
					if grace == 0 && (err != nil || cut || took != time.Minute) {
						t.Errorf("without a grace the answer ends after %v, %v: %q", took, err, b)
					}
					if grace == 0 { // the answer could not say that the connection is old, and the next one does
						if resp := request(t, client, in, asks()[0].text); !resp.Close {
							t.Error("an old connection takes more than a request")
						} else if _, err := io.Copy(io.Discard, resp.Body); err != nil {
							t.Error(err)
						}
					}
					closes(t, in, 0)
				})
			}
		})
	}
}

// TestAnOldConnectionIsClosed after an answer that says so. A request may be on its way when the
// connection becomes old, so the server takes one more. Without a request the connection ends with
// the grace, or when it was idle for too long.
func TestAnOldConnectionIsClosed(t *testing.T) {
	const old = 20 * time.Second
	p := keepalive.ServerParameters{MaxConnectionAge: old}
	call := asks()[0].text
	for grace, end := range map[time.Duration]time.Duration{10 * time.Second: old + 10*time.Second, 0: 2 * time.Minute} {
		p := keepalive.ServerParameters{MaxConnectionAge: old, MaxConnectionAgeGrace: grace}
		if grace > 0 { // without one the deadline of the first request comes at the same time
			inTime(t, p, newAnswers(), func(t *testing.T, client net.Conn, in *bufio.Reader) {
				if _, err := io.WriteString(client, "POST "); err != nil {
					t.Fatal(err)
				}
				closes(t, in, end)
			})
		}
		inTime(t, p, newAnswers(), func(t *testing.T, client net.Conn, in *bufio.Reader) {
			resp := request(t, client, in, call)
			if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.Close {
				t.Errorf("%v, %v", err, resp.Header)
			}
			closes(t, in, end)
		})
	}
	inTime(t, p, newAnswers(), func(t *testing.T, client net.Conn, in *bufio.Reader) {
		for _, last := range []bool{false, true} {
			resp := request(t, client, in, call)
			if n, err := io.Copy(io.Discard, resp.Body); err != nil || n == 0 || resp.Close != last {
				t.Errorf("%d bytes, %v, %v", n, err, resp.Header)
			}
			if !last {
				time.Sleep(2 * old)
			}
		}
		closes(t, in, 0)
	})
	slow := newAnswers()
	unary := slow.unary
	slow.unary = func(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		time.Sleep(time.Minute)
		return unary(ctx, in)
	}
	inTime(t, p, slow, func(t *testing.T, client net.Conn, in *bufio.Reader) {
		resp := request(t, client, in, call)
		if n, err := io.Copy(io.Discard, resp.Body); err != nil || n == 0 || !resp.Close {
			t.Errorf("%d bytes, %v, %v", n, err, resp.Header)
		}
		closes(t, in, 0)
	})
}
