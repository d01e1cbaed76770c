package sock

import (
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"github.com/nearcall/nearcall/internal/link"
)

const noSettings = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// A taker records which taker got a connection, and what was read from it.
type taker struct {
	*Listener
	clients *bufconn.Listener
	taken   chan string
	got     chan Handover
}

// newTaker returns a listener whose takers say in taken who they are. stop must be called.
func newTaker() (l *taker, stop func()) {
	l = &taker{clients: bufconn.Listen(1 << 20), taken: make(chan string, 1), got: make(chan Handover, 1)}
	take := func(name string) func(Handover) {
		return func(h Handover) {
			_ = h.Conn.Close()
			l.taken <- name
			l.got <- h
		}
	}
	l.Listener = &Listener{Listener: l.clients, Options: Options{Handshake: time.Minute}, HTTP2: take("http"), GRPC: take("grpc")}
	ended := make(chan error)
	go func() { ended <- l.Sessions(func(link.Session) link.Acceptor { return nil }) }()
	return l, func() {
		_ = l.Close()
		<-ended
	}
}

func (l *taker) dial(t *testing.T, bytes string) net.Conn {
	t.Helper()
	conn, err := l.clients.DialContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, bytes); err != nil {
		t.Fatal(err)
	}
	return conn
}

// plainBlock returns a header block with the content type, in which nothing is compressed.
func plainBlock(contentType string) string {
	text := func(s string) string { return string([]byte{byte(len(s))}) + s }
	return "\x83\x86\x20" + "\x40" + text("x-a") + text("b") + "\xbe" + "\x10" + text("content-type") + text(contentType)
}

func h2(kind, flags byte, body string) string { return string(frame(nil, kind, flags, 1, body)) }

// TestTheFirstRequestDecidesWhoServes: by its content type, however its header arrives.
func TestTheFirstRequestDecidesWhoServes(t *testing.T) {
	for contentType, want := range map[string]string{
		"application/grpc": "grpc", "application/grpc+proto": "grpc", "application/grpc;x": "grpc",
		"application/grpc-web": "http", "application/grpc-web+proto": "http", "application/json": "http", "": "http",
	} {
		block := plainBlock(contentType)
		half := len(block) / 2
		for name, frames := range map[string]string{
			"whole":     h2(frameHeaders, flagHeaders, block),
			"padded":    h2(frameHeaders, flagHeaders|flagPadded|flagPriority, "\x02prior"+block+"pp"),
			"continued": h2(frameHeaders, 0, block[:half]) + h2(frameContinuation, 0, "") + h2(frameContinuation, flagHeaders, block[half:]),
		} {
			for _, piece := range []int{1 << 10, 1} {
				l, stop := newTaker()
				sent := preface + noSettings + frames + "rest"
				conn := l.dial(t, "")
				go func() {
					for b := sent; b != ""; {
						n := min(piece, len(b))
						if _, err := io.WriteString(conn, b[:n]); err != nil {
							break
						}
						b = b[n:]
					}
				}()
				got := <-l.taken
				h := <-l.got
				if got != want || !strings.HasPrefix(sent, string(h.First)) {
					t.Errorf("%q, %s: %s took %q, want %s", contentType, name, got, h.First, want)
				}
				_ = conn.Close()
				stop()
			}
		}
	}
}

// TestMixedClientsNeedNoFirstRequest: package http serves all that they may send.
func TestMixedClientsNeedNoFirstRequest(t *testing.T) {
	l := &Listener{HTTP2: func(Handover) {}, GRPC: func(Handover) { t.Error("grpc-go got it") }}
	l.takeHTTP2(nil, Handover{First: []byte(preface)}, true)
}

// goAway reads frames until GOAWAY, and returns its code.
func goAway(r io.Reader) (last, code uint32, err error) {
	for {
		var head [9]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return 0, 0, err
		}
		body := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
		if _, err := io.ReadFull(r, body); err != nil {
			return 0, 0, err
		}
		if head[3] == frameGoAway {
			return binary.BigEndian.Uint32(body), binary.BigEndian.Uint32(body[4:]), nil
		}
	}
}

// TestWhatPrecedesARequestIsBounded: in bytes, whatever frames they are.
func TestWhatPrecedesARequestIsBounded(t *testing.T) {
	for name, frames := range map[string]string{
		"SETTINGS":           noSettings,
		"acknowledgements":   h2(frameSettings, flagEnd, ""),
		"PING":               h2(framePing, 0, "12345678"),
		"unknown frames":     h2(200, 0, strings.Repeat("x", 1000)),
		"CONTINUATION":       h2(frameContinuation, 0, strings.Repeat("x", 10_000)),
		"empty CONTINUATION": h2(frameContinuation, 0, ""),
		"a large frame":      h2(frameHeaders, flagHeaders, strings.Repeat("x", maxFrame+1)),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, stop := newTaker()
				start := preface + noSettings
				if strings.HasSuffix(name, "CONTINUATION") {
					start += h2(frameHeaders, 0, "")
				}
				conn := l.dial(t, start)
				defer conn.Close()
				sent := make(chan int)
				go func() {
					n := 0
					for {
						if _, err := io.WriteString(conn, frames); err != nil {
							sent <- n
							return
						}
						n += len(frames)
					}
				}()
				if _, code, err := goAway(conn); err != nil || code != enhanceYourCalm {
					t.Errorf("GOAWAY with the code %d, %v", code, err)
				}
				_, _ = io.Copy(io.Discard, conn)
				if n := <-sent; n > plenty+2<<20 { // what a refused peer may send, and bufconn's buffer
					t.Errorf("%d bytes were read", n)
				}
				stop()
			})
		})
	}
}

// TestAClientOfHTTP2WithoutARequest: at the end of its handshake's time grpc-go gets it, whose
// clients may connect early, if its settings have come and no header has begun.
func TestAClientOfHTTP2WithoutARequest(t *testing.T) {
	for bytes, want := range map[string]string{
		"":                       "",
		preface:                  "",
		preface + noSettings[:5]: "",
		preface + noSettings:     "grpc",
		preface + noSettings + h2(8, 0, "\x00\x00\x00\x09"):                     "grpc",
		preface + noSettings + h2(frameHeaders, flagHeaders, "abc")[:10]:        "",
		preface + noSettings + h2(frameHeaders, 0, "\x83") + "\x00\x00\x01\x09": "",
	} {
		synctest.Test(t, func(t *testing.T) {
			l, stop := newTaker()
			defer stop()
			begun := time.Now()
			conn := l.dial(t, bytes)
			defer conn.Close()
			_, _ = io.Copy(io.Discard, conn)
			if d := time.Since(begun).Round(time.Second); d != time.Minute {
				t.Errorf("%q: the connection ends after %v", bytes, d)
			}
			synctest.Wait()
			select {
			case got := <-l.taken:
				if got != want {
					t.Errorf("%q: taken by %q, want %q", bytes, got, want)
				}
			default:
				if want != "" {
					t.Errorf("%q: not taken", bytes)
				}
			}
		})
	}
}

// TestAListenerThatClosesTellsClientsOfHTTP2: no request was processed, so they can make it again.
func TestAListenerThatClosesTellsClientsOfHTTP2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, stop := newTaker()
		conn := l.dial(t, preface+noSettings)
		defer conn.Close()
		synctest.Wait()
		go stop()
		if last, code, err := goAway(conn); err != nil || code != noError || last != 0 {
			t.Errorf("GOAWAY with the code %d after stream %d, %v", code, last, err)
		}
	})
}

// FuzzContentType checks that no header block makes the listener fail.
func FuzzContentType(f *testing.F) {
	f.Add([]byte(plainBlock("application/grpc")))
	f.Add([]byte("\x0f\x10\x8b" + codedGRPC))
	f.Add([]byte("\x40\x89" + codedName + "\x8c" + codedGRPC + "\xfb"))
	f.Add([]byte("\x7f\xff\xff\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, block []byte) { contentTypeOf(block) })
}
