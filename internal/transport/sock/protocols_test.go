package sock

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/nearpath"
	"github.com/nearcall/nearcall/internal/sniff"
	"github.com/nearcall/nearcall/internal/testing/transporttest"
	"github.com/nearcall/nearcall/internal/wire"
)

const (
	preface    = wire.Preface
	noSettings = "\x00\x00\x00\x04\x00\x00\x00\x00\x00" // SETTINGS without any
)

// Another server can take a connection of an ordinary gRPC client, together with what was
// read from it.
func TestConnectionsOfGRPCClientsMayBeTaken(t *testing.T) {
	inner := bufconn.Listen(1 << 10)
	taken := make(chan string, 1)
	lis := &Listener{Options: with(serverOptions()), Listener: inner, GRPC: func(h sniff.Handover) {
		_, _ = h.Conn.Write([]byte("mine"))
		_ = h.Conn.Close()
		taken <- string(h.First)
	}}
	ended := make(chan error)
	go func() { ended <- lis.Sessions(func(link.Session) link.Acceptor { return nil }) }()
	conn, err := inner.DialContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(preface + "more")); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 4)
	if _, err := conn.Read(answer); err != nil || string(answer) != "mine" {
		t.Errorf("%q, %v", answer, err)
	}
	if first := <-taken; !strings.HasPrefix(first, preface) {
		t.Errorf("GRPC was shown %q", first)
	}
	_ = lis.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// HTTP1 can take a connection, together with what was read from it. It gets none of a
// listener that requires the upgrade.
func TestConnectionsOfHTTP1CanBeTaken(t *testing.T) {
	for _, requires := range []bool{false, true} {
		inner := bufconn.Listen(1 << 10)
		taken := make(chan string, 1)
		lis := &Listener{Listener: inner, Options: Options{Options: nearpath.Options{Config: serverOptions(), RequireUpgrade: requires}}, HTTP1: func(h sniff.Handover) {
			if h.Deadline.IsZero() || h.Auth == nil || h.Accept == nil {
				t.Errorf("%+v is incomplete", h)
			}
			_, _ = h.Conn.Write([]byte("mine"))
			_ = h.Conn.Close()
			taken <- string(h.First)
		}}
		ended := make(chan error)
		go func() { ended <- lis.Sessions(func(link.Session) link.Acceptor { return nil }) }()
		conn, err := inner.DialContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte("GET / ")); err != nil {
			t.Fatal(err)
		}
		want, first := "mine", "GET / "
		if requires {
			want, first = "HTTP", ""
		}
		answer := make([]byte, 4)
		if _, err := conn.Read(answer); err != nil || string(answer) != want {
			t.Errorf("%q, %v; want %q", answer, err, want)
		}
		_ = conn.Close()
		if first != "" {
			if got := <-taken; got != first {
				t.Errorf("HTTP1 was shown %q", got)
			}
		}
		_ = lis.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// Close does not wait until the peer has read the refusal of a connection that nobody takes.
func TestConnectionsThatAreNotTakenEndWithTheListener(t *testing.T) {
	for _, first := range []string{preface, preface + noSettings, "GET / "} {
		synctest.Test(t, func(t *testing.T) {
			inner := bufconn.Listen(1 << 10)
			lis := &Listener{Options: with(serverOptions()), Listener: inner}
			ended := make(chan error)
			go func() { ended <- lis.Sessions(func(link.Session) link.Acceptor { return nil }) }()
			conn, err := inner.DialContext(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := conn.Write([]byte(first)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			began := time.Now()
			_ = lis.Close()
			if err := <-ended; err != nil || time.Since(began) > 0 {
				t.Errorf("%q: it takes %v, with the error %v", first, time.Since(began), err)
			}
		})
	}
}

// TestMixedClientsNeedNoFirstRequest: net/http serves all that they may send.
func TestMixedClientsNeedNoFirstRequest(t *testing.T) {
	for _, mixes := range []bool{false, true} {
		got := ""
		l := &Listener{Options: with(serverOptions()), HTTP2: func(sniff.Handover) { got = "http" }, GRPC: func(sniff.Handover) { got = "grpc" }, Mixes: mixes}
		if l.takeHTTP2(sniff.Handover{First: []byte(preface)}, true); (got == "http") != mixes {
			t.Errorf("%s got it, although Mixes is %t", got, mixes)
		}
	}
}

// listenAsked returns a listener, and a function that returns a connection to it. stop must be called.
func listenAsked(t *testing.T, l *Listener, a link.Acceptor) (dial func() net.Conn, stop func()) {
	t.Helper()
	inner := bufconn.Listen(1 << 16)
	l.Listener = inner
	ended := make(chan error)
	go func() { ended <- l.Sessions(func(link.Session) link.Acceptor { return a }) }()
	dial = func() net.Conn {
		conn, err := inner.DialContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	return dial, func() {
		_ = l.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// dribbling is a connection that writes a byte at a time.
type dribbling struct{ net.Conn }

func (d dribbling) Write(b []byte) (int, error) {
	for i := range b {
		if _, err := d.Conn.Write(b[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(b), nil
}

// TestASessionFollowsTheQuestion, whether or not the server takes ordinary gRPC clients.
func TestASessionFollowsTheQuestion(t *testing.T) {
	wrong := func(sniff.Handover) { t.Error("the connection is taken for one of HTTP/2") }
	for _, l := range []*Listener{{Options: with(serverOptions())}, {Options: with(serverOptions()), GRPC: wrong}, {Options: with(serverOptions()), GRPC: wrong, HTTP2: wrong}} {
		for _, slow := range []bool{false, true} {
			dial, stop := listenAsked(t, l, make(transporttest.Accepter, 1))
			conn := dial()
			if slow {
				conn = dribbling{conn}
			}
			over, native, err := sniff.Ask(t.Context(), conn, nil)
			if err != nil || !native {
				t.Fatal(native, err)
			}
			s, err := Dialer{Options: with(&clientOptions().Connections), Client: clientOptions(), Target: "test"}.Over(t.Context(), over, over, nil)
			if err != nil {
				t.Fatal(err)
			}
			if a := s.Peer().AuthInfo; a != link.Insecure {
				t.Errorf("the session's AuthInfo is %v", a)
			}
			_ = s.Close(errors.New("done"))
			stop()
			*l = Listener{Options: with(serverOptions()), GRPC: l.GRPC, HTTP2: l.HTTP2}
		}
	}
}

// TestAfterTheAnswerTheClientSpeaksNearcall: anything else is refused in words.
func TestAfterTheAnswerTheClientSpeaksNearcall(t *testing.T) {
	for name, then := range map[string]string{
		"HTTP/2": preface + noSettings, "another question": wire.Question, "HTTP/1": "GET / HTTP/1.1\r\n\r\n", "TLS": "\x16\x03\x01", "noise": "noise",
		"frames of HTTP/2": noSettings,
	} {
		for _, early := range []bool{false, true} { // with the question
			if early && then == noSettings {
				continue // the client has had its answer
			}
			dial, stop := listenAsked(t, &Listener{Options: with(serverOptions()), GRPC: func(sniff.Handover) { t.Errorf("%s is taken for gRPC", name) }}, nil)
			conn := dial()
			sent := wire.Question
			if early {
				sent += then
			}
			go func() { _, _ = io.WriteString(conn, sent) }()
			answer := make([]byte, len(wire.Answer))
			if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != wire.Answer {
				t.Fatalf("%s: %q, %v", name, answer, err)
			}
			if !early {
				_, _ = io.WriteString(conn, then)
			}
			wantBye(t, name, conn, wire.ByeProtocol, "must speak that")
			_ = conn.Close()
			stop()
		}
	}
}

// TestAQuestionThatWasAnsweredIsHTTP2: a multiplexer has sent SETTINGS to the client, and passes on what
// the client has sent since.
func TestAQuestionThatWasAnsweredIsHTTP2(t *testing.T) {
	for _, sent := range []string{wire.Question + noSettings, wire.Question + noSettings[:3], wire.Question + noSettings + "more"} {
		taken := make(chan sniff.Handover, 1)
		dial, stop := listenAsked(t, &Listener{Options: with(serverOptions()), GRPC: func(h sniff.Handover) { taken <- h }}, nil)
		conn := dial()
		go func() { _, _ = io.WriteString(conn, sent) }()
		h := <-taken
		if string(h.First) != sent {
			t.Errorf("gRPC gets %q", h.First)
		}
		_ = h.Conn.Close()
		_ = conn.Close()
		stop()

		near, far := net.Pipe()
		go func() { _, _ = io.WriteString(near, sent) }()
		if _, isHTTP2, err := sniff.Begin(far); err != nil || !isHTTP2 {
			t.Errorf("a library's server: %t, %v", isHTTP2, err)
		}
		_, _ = near.Close(), far.Close()
	}
}

// wantBye reads what a server says before it closes conn: that it refuses the client.
func wantBye(t *testing.T, name string, conn net.Conn, code wire.ByeCode, text string) {
	t.Helper()
	b, _ := io.ReadAll(conn)
	rest, ok := strings.CutPrefix(string(b), wire.Magic)
	if !ok {
		t.Errorf("%s: the server says %q", name, b)
		return
	}
	hello, n, err := wire.Next([]byte(rest))
	if err != nil || hello.Kind != wire.KindHello {
		t.Errorf("%s: %v, %v", name, hello, err)
		return
	}
	bye, _, err := wire.Next([]byte(rest[n:]))
	if err != nil || bye.Kind != wire.KindBye {
		t.Errorf("%s: %v, %v", name, bye, err)
		return
	}
	if c, why, err := wire.ParseBye(bye.Body); c != code || !strings.Contains(why, text) || err != nil {
		t.Errorf("%s: %d, %q, %v", name, c, why, err)
	}
}

// TestTheQuestionHasTheDeadlineOfFirstBytes, with what follows the answer.
func TestTheQuestionHasTheDeadlineOfFirstBytes(t *testing.T) {
	const full = 16 << 10 / 6 // settings
	settings := preface + "\x00\x3f\xfc\x04\x00\x00\x00\x00\x00" + strings.Repeat("\x00\x04\x00\x01\x00\x00", full)
	for name, sends := range map[string]string{
		"half a question": wire.Question[:30], "all but a byte": wire.Question[:len(wire.Question)-1],
		"a frame that does not end": settings[:len(settings)-1], "nothing after it": wire.Question, "half a line": wire.Question + "nearcall/",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dial, stop := listenAsked(t, &Listener{Options: with(within(5 * time.Second)), GRPC: func(sniff.Handover) { t.Error("it is taken for gRPC") }}, nil)
				defer stop()
				conn := dial()
				defer conn.Close()
				begun := time.Now()
				go func() {
					for _, b := range []byte(sends) {
						if _, err := conn.Write([]byte{b}); err != nil {
							return
						}
					}
				}()
				_, _ = io.Copy(io.Discard, conn)
				if d := time.Since(begun); d != 5*time.Second {
					t.Errorf("the connection is closed after %v", d)
				}
			})
		})
	}
}

// TestALibrarysServerIsAsked: Begin does not take the question for HTTP/2.
func TestALibrarysServerIsAsked(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	defer near.Close()
	go func() {
		b, isHTTP2, err := sniff.Begin(far)
		if err != nil || isHTTP2 {
			t.Errorf("%t, %v", isHTTP2, err)
			_ = far.Close()
			return
		}
		l := &Listener{Options: with(serverOptions())}
		if wait, err := l.ServeConn(b, func(link.Session) link.Acceptor { return make(transporttest.Accepter, 1) }); err == nil {
			_ = wait()
		}
	}()
	over, native, err := sniff.Ask(t.Context(), near, nil)
	if err != nil || !native {
		t.Fatal(native, err)
	}
	s, err := Dialer{Options: with(&clientOptions().Connections), Client: clientOptions(), Target: "test"}.Over(t.Context(), over, over, credentials.TLSInfo{})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := s.Peer().AuthInfo.(credentials.TLSInfo); !ok {
		t.Errorf("the session's AuthInfo is %v", s.Peer().AuthInfo)
	}
	_ = s.Close(errors.New("done"))
}
