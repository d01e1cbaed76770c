package web

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/sniff"
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
	if o.Begin == nil {
		o.Begin = func() bool { return true }
	}
	if o.Config == nil {
		o.Config = options.NewServer(nil)
	}
	o.Sockets.Config = &o.Config.Connections
	return New(o)
}

// windows returns the options of a server whose requests have a window of n bytes.
func windows(n int) Options {
	o := options.NewServer(nil)
	o.LocalWindow = n
	return Options{Config: o}
}

// handOver gives one end of a connection to s, and returns the other.
func handOver(t *testing.T, s *Server, first string, a link.Acceptor) (client net.Conn, taken link.Session) {
	t.Helper()
	client, server := net.Pipe()
	t.Cleanup(func() { _ = client.Close() })
	s.Take(sniff.Handover{Conn: server, First: []byte(first), Deadline: time.Now().Add(time.Minute), Accept: func(l link.Session) link.Acceptor {
		taken = l
		return a
	}})
	return client, taken
}

const asksForWebSocket = "GET /x HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\n" +
	"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: nearcall.v1\r\n\r\n"

// TestAWebSocketTakesTheConnectionOver: the session of HTTP ends, and the connection, with what
// was read from it, is that of another.
func TestAWebSocketTakesTheConnectionOver(t *testing.T) {
	const ping, pong = "\x89\x84\x00\x00\x00\x00more", "\x8a\x04more"
	client, server := net.Pipe()
	defer func() { _ = client.Close() }()
	sessions, w := make(chan link.Session, 2), newWitness()
	serverOf(t, Options{}).Take(sniff.Handover{
		Conn: server, First: []byte(asksForWebSocket + ping), Deadline: time.Now().Add(time.Minute), Path: "/x",
		Accept: func(l link.Session) link.Acceptor {
			sessions <- l
			return w
		},
	})
	in := bufio.NewReader(client)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v, %v", resp, err)
	}
	<-w.closed
	<-w.gone
	session, over := <-sessions, <-sessions
	session.Drain() // it has no connection any more
	<-session.Ended()
	for read := []byte(nil); !bytes.Contains(read, []byte(pong)); {
		b, err := in.ReadByte()
		if err != nil {
			t.Fatalf("%q, %v", read, err)
		}
		read = append(read, b)
	}
	_ = client.Close()
	<-over.Ended()
}

func TestAServerThatStopsRefusesAWebSocket(t *testing.T) {
	client, session := handOver(t, serverOf(t, Options{Begin: func() bool { return false }}), asksForWebSocket, newWitness())
	resp, err := http.ReadResponse(bufio.NewReader(client), nil)
	if err != nil || resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("%v, %v", resp, err)
	}
	_ = session.Close(io.EOF)
}

// TestASessionThatEndsBeforeItStartsIsGone: a server may be stopped while it accepts.
func TestASessionThatEndsBeforeItStartsIsGone(t *testing.T) {
	s := serverOf(t, Options{})
	client, server := net.Pipe()
	w := newWitness()
	s.Take(sniff.Handover{Conn: server, Accept: func(l link.Session) link.Acceptor {
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
	s.Take(sniff.Handover{Conn: server, Accept: func(link.Session) link.Acceptor { return nil }})
}

// twice is an acceptor that answers each call with two messages, of which the second ends it or
// does not.
type twice struct {
	transporttest.Accepter
	ends bool
}

func (a twice) HandleStream(s link.Stream, _ *link.CallHeader) error {
	second := &link.Frame{Msg: message.Live([]byte("b"), raw{}), HasMsg: true}
	if a.ends {
		second.End = &link.End{}
	}
	if err := s.Send(&link.Frame{Msg: message.Live([]byte("a"), raw{}), HasMsg: true}); err != nil {
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
