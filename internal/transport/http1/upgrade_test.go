package http1

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/testing/transporttest"
)

// A witness is an acceptor that says when its session is gone.
type witness struct {
	transporttest.Accepter
	closed, gone chan error
}

func newWitness() *witness {
	return &witness{make(transporttest.Accepter, 100), make(chan error, 10), make(chan error, 10)}
}

func (w *witness) Closed(reason error) { w.closed <- reason }
func (w *witness) Gone()               { w.gone <- nil }

// serverOf returns a server that knows all methods and codecs.
func serverOf(t *testing.T, o Options) *Server {
	t.Helper()
	o.Method = func(string) link.Method { return link.Method{} }
	o.Codec = func(string) bool { return true }
	o.Compressors = func() []string { return nil }
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// handOver gives one end of a connection to s, and returns the other.
func handOver(t *testing.T, s *Server, first string, a link.Acceptor) (client net.Conn, taken link.Session) {
	t.Helper()
	client, server := net.Pipe()
	t.Cleanup(func() { _ = client.Close() })
	s.Take(Handover{Conn: server, First: []byte(first), Deadline: time.Now().Add(time.Minute), Accept: func(l link.Session) link.Acceptor {
		taken = l
		return a
	}})
	return client, taken
}

const asksForWebSocket = "GET /x HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\n\r\n"

func TestAnUpgradeTakesTheConnectionOver(t *testing.T) {
	drained := make(chan struct{})
	s := serverOf(t, Options{Upgrade: func(w http.ResponseWriter, r *http.Request, h Handover) (int, string) {
		if h.Accept == nil || r.URL.Path != "/x" {
			t.Errorf("%+v, %v", h, r.URL)
		}
		conn, first, err := Hijack(w)
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		if conn != h.Conn || string(first) != "more" {
			t.Errorf("the connection is not the one that came, or what follows the request is %q", first)
		}
		go func() {
			<-drained // the session, which has no connection any more
			_, _ = io.WriteString(conn, "mine")
			_ = conn.Close()
		}()
		return 0, ""
	}})
	w := newWitness()
	client, session := handOver(t, s, asksForWebSocket+"more", w)
	<-w.closed
	<-w.gone
	session.Drain()
	close(drained)
	b, err := io.ReadAll(client)
	if err != nil || string(b) != "mine" {
		t.Errorf("%q, %v", b, err)
	}
	<-session.Ended()
}

func TestWithoutAnUpgradeWebSocketIsRefusedInWords(t *testing.T) {
	for name, c := range map[string]struct {
		Options
		code int
		text string
	}{
		"no Upgrade": {Options{}, http.StatusNotImplemented, "does not speak WebSocket"},
		"Upgrade refuses": {Options{Upgrade: func(http.ResponseWriter, *http.Request, Handover) (int, string) {
			return http.StatusTeapot, "not here"
		}}, http.StatusTeapot, "not here"},
	} {
		client, session := handOver(t, serverOf(t, c.Options), asksForWebSocket, newWitness())
		resp, err := http.ReadResponse(bufio.NewReader(client), nil)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != c.code || !strings.Contains(string(b), c.text) {
			t.Errorf("%s: %s: %s", name, resp.Status, b)
		}
		_ = session.Close(io.EOF)
	}
}

// TestASessionThatEndsBeforeItStartsIsGone: a server may be stopped while it accepts.
func TestASessionThatEndsBeforeItStartsIsGone(t *testing.T) {
	s := serverOf(t, Options{})
	client, server := net.Pipe()
	w := newWitness()
	s.Take(Handover{Conn: server, Accept: func(l link.Session) link.Acceptor {
		l.Drain()
		_ = l.Close(io.ErrNoProgress)
		return w
	}})
	if reason := <-w.closed; reason != io.ErrNoProgress {
		t.Errorf("closed for %v", reason)
	}
	<-w.gone
	if _, err := client.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the client reads %v", err)
	}
	s.Take(Handover{Conn: server, Accept: func(link.Session) link.Acceptor { return nil }})
}

// twice is an acceptor that answers each call with two messages, of which the second ends it or
// does not.
type twice struct {
	transporttest.Accepter
	ends bool
}

func (a twice) HandleStream(s link.Stream, _ *link.CallHeader) error {
	second := &link.Frame{Msg: link.Live([]byte("b"), raw{}), HasMsg: true}
	if a.ends {
		second.End = &link.End{}
	}
	if err := s.Send(&link.Frame{Msg: link.Live([]byte("a"), raw{}), HasMsg: true}); err != nil {
		return err
	}
	return s.Send(second)
}

// TestASecondMessageOfAUnaryAnswerIsAnError: also if the handler has returned by then.
func TestASecondMessageOfAUnaryAnswerIsAnError(t *testing.T) {
	for _, ends := range []bool{true, false} {
		client, session := handOver(t, serverOf(t, Options{}), "", twice{ends: ends})
		in := bufio.NewReader(client)
		for range 2 { // the connection stays
			if _, err := io.WriteString(client, "POST /a/b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/proto\r\nContent-Length: 0\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(resp.Body)
			if resp.StatusCode != http.StatusInternalServerError || !strings.Contains(string(b), "second message") || err != nil {
				t.Errorf("%s: %s, %v", resp.Status, b, err)
			}
		}
		_ = session.Close(io.EOF)
	}
}
