package sniff

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

	"github.com/nearcall/nearcall/internal/link"
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
