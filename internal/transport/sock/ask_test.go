package sock

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/testing/transporttest"
	"github.com/nearcall/nearcall/internal/wire"
)

// answeringPipe returns the client's end of a connection whose server reads the question and then writes
// reply in pieces. It then closes the connection, unless stays is set.
func answeringPipe(t *testing.T, reply string, size int, stays bool) net.Conn {
	near, far := net.Pipe()
	t.Cleanup(func() { _ = near.Close() })
	go func() {
		question := make([]byte, len(wire.Question))
		if _, err := io.ReadFull(far, question); err != nil || string(question) != wire.Question {
			t.Errorf("the client has asked %q, %v", question, err)
		}
		writePieces(far, reply, func() int { return size })
		if stays {
			_, _ = io.Copy(io.Discard, far)
		}
		_ = far.Close()
	}()
	return near
}

func TestAServerOfNearcallAnswersTheQuestion(t *testing.T) {
	const more = "nearcall/1\nmore"
	for _, size := range []int{1, 100} {
		conn := answeringPipe(t, wire.Answer+more, size, false)
		over, native, err := Ask(t.Context(), conn, nil)
		if err != nil || !native || over != conn {
			t.Fatalf("%v, %t, %v", over, native, err)
		}
		if rest, err := io.ReadAll(over); string(rest) != more || err != nil {
			t.Errorf("%q is left, want %q; %v", rest, more, err)
		}
	}
}

// TestAClientOfGRPCGoesOnAfterTheQuestion: it reads all that the server has sent, and its preface,
// which the server has got, is dropped.
func TestAClientOfGRPCGoesOnAfterTheQuestion(t *testing.T) {
	const reply = "\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\x00\x01\x00\x00" + "\x00\x00\x00\x04\x01\x00\x00\x00\x00"
	for _, size := range []int{1, 5, len(preface), 100} {
		near, far := net.Pipe()
		received := make(chan string)
		go func() {
			question := make([]byte, len(wire.Question))
			_, _ = io.ReadFull(far, question)
			_, _ = io.WriteString(far, reply)
			rest, _ := io.ReadAll(far)
			received <- string(rest)
		}()
		over, native, err := Ask(t.Context(), near, nil)
		if err != nil || native {
			t.Fatal(native, err)
		}
		read := make([]byte, len(reply))
		if _, err := io.ReadFull(over, read); string(read) != reply || err != nil {
			t.Errorf("the client reads %q, want %q; %v", read, reply, err)
		}
		writePieces(over, preface+noSettings+"more", func() int { return size })
		_ = over.Close()
		if got := <-received; got != noSettings+"more" {
			t.Errorf("in pieces of %d the server gets %q", size, got)
		}
	}
}

// TestAServerMayWriteBeforeItReads, as grpc-go's does, also where a write waits for its reader.
func TestAServerMayWriteBeforeItReads(t *testing.T) {
	const settings = "\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\x00\x01\x00\x00"
	near, far := net.Pipe()
	received := make(chan string)
	go func() {
		_, _ = io.WriteString(far, settings)
		all, _ := io.ReadAll(far)
		received <- string(all)
	}()
	over, native, err := Ask(t.Context(), near, nil)
	if err != nil || native {
		t.Fatal(native, err)
	}
	read := make(chan string)
	go func() {
		b := make([]byte, len(settings))
		_, _ = io.ReadFull(over, b)
		read <- string(b)
	}()
	if _, err := io.WriteString(over, preface+noSettings); err != nil {
		t.Fatal(err)
	}
	if got := <-read; got != settings {
		t.Errorf("the client reads %q, want %q", got, settings)
	}
	_ = over.Close()
	if got := <-received; got != wire.Question+noSettings {
		t.Errorf("the server gets %q", got)
	}
}

// TestAQuestionThatCannotBeWritten fails with the reason.
func TestAQuestionThatCannotBeWritten(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	_ = near.SetWriteDeadline(time.Unix(1, 0))
	defer near.Close()
	if _, _, err := Ask(t.Context(), near, nil); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
}

func TestWhatIsNoPrefaceIsNotWritten(t *testing.T) {
	for _, b := range []string{"GET / HTTP/1.1", preface[:10] + "x", noSettings} {
		conn := answeringPipe(t, noSettings, 100, true)
		over, _, err := Ask(t.Context(), conn, nil)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.WriteString(over, b); n != 0 || err == nil || !strings.Contains(err.Error(), "must begin with the preface") {
			t.Errorf("%q: %d, %v", b, n, err)
		}
	}
}

func TestRepliesAreUnderstood(t *testing.T) {
	v := readVectors(t)
	for _, s := range v.Servers {
		b, got := unhex(t, s.Hex), "other"
		switch r, _ := replyOf(b[:min(len(b), frameHead)]); r {
		case unclearYet:
			got = ""
		case isNative:
			got = "nearcall"
		case isGRPC:
			got = "grpc"
		}
		if got != s.Is {
			t.Errorf("%s %q, want %q", s.About, got, s.Is)
		}
	}
	if string(unhex(t, v.Answer)) != wire.Answer {
		t.Errorf("the answer is %s", v.Answer)
	}
}

// TestAnythingElseIsAnErrorThatSaysWhatToDo, whether or not the server then closes the connection.
func TestAnythingElseIsAnErrorThatSaysWhatToDo(t *testing.T) {
	for name, c := range map[string]struct{ reply, want string }{
		"an old server of nearcall": {wire.Magic, "dial a ws:"},
		"HTTP/1":                    {"HTTP/1.1 400 Bad Request\r\n\r\n", "or use WithTransportCredentials"},
		"an alert":                  {"\x15\x03\x01\x00\x02\x02\x46", "expects TLS; use WithTransportCredentials"},
		"another line":              {"SSH-2.0-OpenSSH\r\n", `begins with "S`},
		"GOAWAY":                    {"\x00\x00\x08\x07\x00\x00\x00\x00\x00", "dial another address"},
		"an acknowledgement":        {"\x00\x00\x00\x04\x01\x00\x00\x00\x00", "dial another address"},
		"SETTINGS of a stream":      {"\x00\x00\x00\x04\x00\x00\x00\x00\x01", "dial another address"},
		"large SETTINGS":            {"\x00\x40\x01\x04\x00\x00\x00\x00\x00", "dial another address"},
		"almost the answer":         {"nearcall ", "dial another address"},
		"a zero":                    {"\x00\xff\xff", "dial another address"},
		"a TLS record":              {"\x16\x03", "dial another address"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, stays := range []bool{false, true} {
				for _, size := range []int{1, 100} {
					over, native, err := Ask(t.Context(), answeringPipe(t, c.reply, size, stays), nil)
					if !errors.Is(err, link.ErrForeign) || !strings.Contains(err.Error(), c.want) || native {
						t.Errorf("%v, %t, %v; want %q", over, native, err, c.want)
					}
				}
			}
		})
	}
}

// TestAServerThatClosesTheConnectionIsNotForeign: it can be about to stop.
func TestAServerThatClosesTheConnectionIsNotForeign(t *testing.T) {
	for _, reply := range []string{"", "near", "\x00\x00\x00\x04", "H", "\x15"} {
		_, _, err := Ask(t.Context(), answeringPipe(t, reply, 100, false), nil)
		if err == nil || errors.Is(err, link.ErrForeign) || !strings.Contains(err.Error(), "closed the connection") || !strings.Contains(err.Error(), "TLS") {
			t.Errorf("%q: %v", reply, err)
		}
	}
	near, far := net.Pipe()
	_ = far.Close()
	if _, _, err := Ask(t.Context(), near, nil); err == nil || errors.Is(err, link.ErrForeign) {
		t.Error(err)
	}
}

func TestAServerThatResetsTheConnectionSaysNothing(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	go func() {
		conn, err := lis.Accept()
		if err != nil {
			return
		}
		_, _ = io.ReadFull(conn, make([]byte, len(wire.Question)))
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
	}()
	conn, err := net.Dial("tcp", lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, _, err := Ask(t.Context(), conn, nil); err == nil || errors.Is(err, link.ErrForeign) || !strings.Contains(err.Error(), "has not said") {
		t.Error(err)
	}
}

// TestAskEndsWithItsContext, whatever it waits for.
func TestAskEndsWithItsContext(t *testing.T) {
	for name, serve := range map[string]func(net.Conn){
		"the server does not read":             func(net.Conn) {},
		"the server says nothing":              func(c net.Conn) { _, _ = io.Copy(io.Discard, c) },
		"the server answers and does not read": func(c net.Conn) { _, _ = io.WriteString(c, wire.Answer) },
		"the server does not go on": func(c net.Conn) {
			_, _ = io.ReadFull(c, make([]byte, len(wire.Question)))
			_, _ = io.WriteString(c, wire.Answer[:8])
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				defer far.Close()
				defer near.Close()
				go serve(far)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				begun := time.Now()
				if _, _, err := Ask(ctx, near, nil); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != time.Second {
					t.Errorf("after %v: %v", time.Since(begun), err)
				}
			})
		})
	}
}

// TestALateContextSpoilsNothing: once Ask has returned, its context has no part in the connection.
func TestALateContextSpoilsNothing(t *testing.T) {
	conn := answeringPipe(t, noSettings+"more", 100, true)
	ctx, cancel := context.WithCancel(t.Context())
	over, _, err := Ask(ctx, conn, nil)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	b := make([]byte, len(noSettings)+4)
	if _, err := io.ReadFull(over, b); err != nil {
		t.Error(err)
	}
	if _, err := io.WriteString(over, preface+noSettings); err != nil {
		t.Error(err)
	}
}

// FuzzAsk checks that no server makes Ask read too much, or lose a byte.
func FuzzAsk(f *testing.F) {
	for _, s := range []string{wire.Answer + wire.Magic, noSettings + noSettings, wire.Magic, "HTTP/1.1 400 Bad", "\x15\x03\x01\x00\x02\x02\x46", "\x00", ""} {
		f.Add([]byte(s), uint8(1))
		f.Add([]byte(s), uint8(20))
	}
	f.Fuzz(func(t *testing.T, b []byte, size uint8) {
		p := &pieces{rest: b, size: max(1, int(size))}
		conn := duplex{readConn{r: p}}
		over, native, err := Ask(t.Context(), conn, nil)
		answers, settings := strings.HasPrefix(string(b), wire.Answer), len(b) >= frameHead && mayBeSettings(b)
		if (err == nil) != (answers || settings) || native != answers || p.taken > frameHead {
			t.Fatalf("%t, %v; %d bytes were read", native, err, p.taken)
		}
		if err != nil {
			return
		}
		want := b
		if native {
			want = b[len(wire.Answer):]
		}
		if rest, err := io.ReadAll(over); !bytes.Equal(rest, want) || err != nil {
			t.Fatalf("%q is left, want %q; %v", rest, want, err)
		}
	})
}

// A duplex is a readConn that takes what is written.
type duplex struct{ readConn }

func (duplex) Write(b []byte) (int, error) { return len(b), nil }
func (duplex) SetDeadline(time.Time) error { return nil }

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
	wrong := func(Handover) { t.Error("the connection is taken for one of HTTP/2") }
	for _, l := range []*Listener{{Options: Options{Config: serverOptions()}}, {Options: Options{Config: serverOptions()}, GRPC: wrong}, {Options: Options{Config: serverOptions()}, GRPC: wrong, HTTP2: wrong}} {
		for _, slow := range []bool{false, true} {
			dial, stop := listenAsked(t, l, make(transporttest.Accepter, 1))
			conn := dial()
			if slow {
				conn = dribbling{conn}
			}
			over, native, err := Ask(t.Context(), conn, nil)
			if err != nil || !native {
				t.Fatal(native, err)
			}
			s, err := Dialer{Options: Options{Config: &clientOptions().Connections}, Client: clientOptions(), Target: "test"}.Over(t.Context(), over, over, nil)
			if err != nil {
				t.Fatal(err)
			}
			if a := s.Peer().AuthInfo; a != link.Insecure {
				t.Errorf("the session's AuthInfo is %v", a)
			}
			_ = s.Close(errors.New("done"))
			stop()
			*l = Listener{Options: Options{Config: serverOptions()}, GRPC: l.GRPC, HTTP2: l.HTTP2}
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
			dial, stop := listenAsked(t, &Listener{Options: Options{Config: serverOptions()}, GRPC: func(Handover) { t.Errorf("%s is taken for gRPC", name) }}, nil)
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
		taken := make(chan Handover, 1)
		dial, stop := listenAsked(t, &Listener{Options: Options{Config: serverOptions()}, GRPC: func(h Handover) { taken <- h }}, nil)
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
		if _, isHTTP2, err := Begin(far); err != nil || !isHTTP2 {
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
	settings := frame([]byte(preface), frameSettings, 0, 0, strings.Repeat("\x00\x04\x00\x01\x00\x00", maxFrame/settingSize))
	for name, sends := range map[string]string{
		"half a question": wire.Question[:30], "all but a byte": wire.Question[:len(wire.Question)-1],
		"a frame that does not end": string(settings[:len(settings)-1]), "nothing after it": wire.Question, "half a line": wire.Question + "nearcall/",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dial, stop := listenAsked(t, &Listener{Options: Options{Config: within(5 * time.Second)}, GRPC: func(Handover) { t.Error("it is taken for gRPC") }}, nil)
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
		b, isHTTP2, err := Begin(far)
		if err != nil || isHTTP2 {
			t.Errorf("%t, %v", isHTTP2, err)
			_ = far.Close()
			return
		}
		l := &Listener{Options: Options{Config: serverOptions()}}
		if wait, err := l.ServeConn(b, func(link.Session) link.Acceptor { return make(transporttest.Accepter, 1) }); err == nil {
			_ = wait()
		}
	}()
	over, native, err := Ask(t.Context(), near, nil)
	if err != nil || !native {
		t.Fatal(native, err)
	}
	s, err := Dialer{Options: Options{Config: &clientOptions().Connections}, Client: clientOptions(), Target: "test"}.Over(t.Context(), over, over, credentials.TLSInfo{})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := s.Peer().AuthInfo.(credentials.TLSInfo); !ok {
		t.Errorf("the session's AuthInfo is %v", s.Peer().AuthInfo)
	}
	_ = s.Close(errors.New("done"))
}
