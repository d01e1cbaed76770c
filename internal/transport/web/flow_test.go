package web_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
)

// TestAClientThatDoesNotReadStopsTheHandler: what waits for it is bounded.
func TestAClientThatDoesNotReadStopsTheHandler(t *testing.T) {
	var sent atomic.Int64
	ended := make(chan error, 1)
	s := start(t, &service{output: func(_ *testpb.StreamingOutputCallRequest, out grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
		for {
			if err := out.Send(&testpb.StreamingOutputCallResponse{Payload: body(16 << 10)}); err != nil {
				ended <- err
				return err
			}
			sent.Add(16 << 10)
		}
	}})
	conn := s.dial()
	_, _ = io.WriteString(conn, strings.Replace(head("StreamingOutputCall", "Content-Length: 7"), "json", "connect+json", 1)+wrap(0, "{}"))
	if n := rest(&sent); n > 32<<20 {
		t.Errorf("the handler has sent %d bytes to a client that reads nothing", n)
	}
	_ = conn.Close()
	<-ended
}

// rest waits until n no longer changes, which is when the system's buffers and the window
// are full, and returns it.
func rest(n *atomic.Int64) int64 {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for last, same := int64(0), 0; ; <-tick.C {
		switch now := n.Load(); {
		case now != last || now == 0:
			last, same = now, 0
		case same == 10:
			return last
		default:
			same++
		}
	}
}

// TestAHandlerThatDoesNotReceiveStopsTheClient: the server does not read what it has no
// room for.
func TestAHandlerThatDoesNotReceiveStopsTheClient(t *testing.T) {
	begun, finish := make(chan struct{}), make(chan struct{})
	s := start(t, &service{input: func(in grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]) error {
		close(begun)
		<-finish
		n := 0
		for {
			m, err := in.Recv()
			if err == io.EOF {
				return in.SendAndClose(&testpb.StreamingInputCallResponse{AggregatedPayloadSize: int32(n)})
			}
			if err != nil {
				return err
			}
			n += len(m.Payload.GetBody())
		}
	}})
	pr, pw := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), "POST", s.url+"StreamingInputCall", pr)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/connect+proto")
	var wrote atomic.Int64
	go func() {
		part := []byte(wrap(0, encode(t, &testpb.StreamingInputCallRequest{Payload: body(32 << 10)})))
		for range 2000 { // 64 MiB
			if _, err := pw.Write(part); err != nil {
				t.Error(err)
				break
			}
			wrote.Add(32 << 10)
		}
		_ = pw.Close()
	}()
	answered := make(chan answer)
	go func() {
		resp, err := s.client.Do(req)
		if err != nil {
			t.Error(err)
			close(answered)
			return
		}
		b, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		answered <- answer{resp.StatusCode, resp.Header, string(b)}
	}()
	<-begun
	if n := rest(&wrote); n > 32<<20 {
		t.Errorf("the client could send %d bytes to a handler that receives nothing", n)
	}
	close(finish)
	a := <-answered
	parts := unwrap(t, a.body)
	var got testpb.StreamingInputCallResponse
	if len(parts) != 2 || parts[1].body != "{}" || unmarshal(parts[0].body, &got) != nil || got.AggregatedPayloadSize != 2000*32<<10 {
		t.Errorf("%d, %v", a.code, &got)
	}
}

// TestACallThatIsOverAnswersAClientThatStillSends: it need not wait for the request's end.
func TestACallThatIsOverAnswersAClientThatStillSends(t *testing.T) {
	s := start(t, &service{bidi: func(grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
		return context.DeadlineExceeded
	}})
	conn := s.dial()
	_, _ = io.WriteString(conn, strings.Replace(head("FullDuplexCall", "Transfer-Encoding: chunked"), "json", "connect+json", 1)+"1\r\n\x00\r\n")
	a := readAnswer(t, bufio.NewReader(conn))
	if parts := unwrap(t, a.body); len(parts) != 1 || !strings.Contains(parts[0].body, "deadline_exceeded") || a.header.Get("Connection") != "close" {
		t.Errorf("%q, %v", parts, a.header)
	}
}
