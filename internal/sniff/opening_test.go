package sniff

import (
	"bufio"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/test/bufconn"
)

const noSettings = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// A taker records which server got a connection, and what it read.
type taker struct {
	clients *bufconn.Listener
	taken   chan taken
}

type taken struct{ by, read string }

// newTaker returns a taker whose servers read until "rest". stop must be called.
func newTaker() (l *taker, stop func()) {
	l = &taker{clients: bufconn.Listen(1 << 20), taken: make(chan taken, 1)}
	take := func(name string) func(Handover) {
		return func(h Handover) {
			go func() {
				defer h.Conn.Close()
				read := string(h.First)
				for b := make([]byte, 4<<10); !strings.HasSuffix(read, "rest"); {
					n, err := h.Conn.Read(b)
					if read += string(b[:n]); err != nil {
						return // net/http gets it
					}
				}
				l.taken <- taken{name, read}
			}()
		}
	}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			conn, err := l.clients.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				if first, p, err := Read(conn, nil, ""); err == nil && p == HTTP2 {
					TakeHTTP2(Handover{Conn: conn, First: first}, take("grpc"), take("http"), inAMinute)
				}
			})
		}
	})
	return l, func() {
		_ = l.clients.Close()
		conns.Wait()
	}
}

func inAMinute() time.Time { return time.Now().Add(time.Minute) }

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

// TestTheFirstRequestDecidesWhoServes: by its content type, however its header arrives. The
// server reads all that was sent.
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
				go writePieces(conn, sent, func() int { return piece })
				if got := <-l.taken; got.by != want || got.read != sent {
					t.Errorf("%q, %s: %s read %q, want %s, %q", contentType, name, got.by, got.read, want, sent)
				}
				_ = conn.Close()
				stop()
			}
		}
	}
}

// writePieces writes s in pieces of next() bytes.
func writePieces(conn net.Conn, s string, next func() int) {
	for s != "" {
		n := min(next(), len(s))
		if _, err := io.WriteString(conn, s[:n]); err != nil {
			return
		}
		s = s[n:]
	}
}

// TestWhatIsNoRequestIsGRPCs: grpc-go knows what to do with it, and nothing of it is kept.
func TestWhatIsNoRequestIsGRPCs(t *testing.T) {
	request := h2(frameHeaders, flagHeaders, plainBlock("application/json"))
	many := func(frame string, bytes int) string { return strings.Repeat(frame, bytes/len(frame)+1) }
	for name, frames := range map[string]string{
		"no SETTINGS":              request,
		"an acknowledgement first": h2(frameSettings, flagEnd, "") + request,
		"SETTINGS of odd size":     noSettings + h2(frameSettings, 0, "12345") + request,
		"DATA":                     noSettings + h2(0, 0, "") + request,
		"RST_STREAM":               noSettings + h2(3, 0, "1234") + request,
		"GOAWAY":                   noSettings + h2(frameGoAway, 0, "12345678") + request,
		"CONTINUATION":             noSettings + h2(frameContinuation, flagHeaders, plainBlock("application/json")) + request,
		"PING in a header":         noSettings + h2(frameHeaders, 0, "") + h2(framePing, 0, "12345678") + request,
		"a malformed header":       noSettings + h2(frameHeaders, flagHeaders, "\x7f\xff\xff\xff\xff\xff\xff") + request,
		"a large frame":            noSettings + h2(200, 0, strings.Repeat("x", maxFrame+1)) + request,
		"much in SETTINGS":         many(h2(frameSettings, 0, "123456"), maxOpening/6*15) + request,
		"many PINGs":               noSettings + many(h2(framePing, 0, "12345678"), maxOpening/8*17) + request,
		"many unknown frames":      noSettings + many(h2(200, 0, ""), maxOpening) + request,
		"a large header":           noSettings + h2(frameHeaders, 0, "") + many(h2(frameContinuation, 0, strings.Repeat("x", 10_000)), maxBlock),
		"empty CONTINUATION":       noSettings + h2(frameHeaders, 0, "") + many(h2(frameContinuation, 0, ""), maxBlock),
	} {
		t.Run(name, func(t *testing.T) {
			l, stop := newTaker()
			defer stop()
			conn := l.dial(t, "")
			defer conn.Close()
			sent := preface + frames + "rest"
			go writePieces(conn, sent, func() int { return 1000 })
			if got := <-l.taken; got.by != "grpc" || got.read != sent {
				t.Errorf("%s read %d bytes, want grpc, %d", got.by, len(got.read), len(sent))
			}
		})
	}
}

// TestNetHTTPGoesOnWhereGRPCHasBegun draws what a client sends, and what grpc-go answers before a
// first request of another protocol, in pieces of any size. net/http must read, and the client must
// get, what they would without grpc-go.
func TestNetHTTPGoesOnWhereGRPCHasBegun(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 0))
		sizes := func(who uint64, most int) func() int {
			r := rand.New(rand.NewPCG(seed, who))
			return func() int { return 1 + r.IntN(most) }
		}
		var (
			ack     = h2(frameSettings, flagEnd, "")
			request = h2(frameHeaders, flagHeaders, plainBlock("application/json"))
			data    = h2(0, 0, strings.Repeat("z", r.IntN(100)))
			later   = h2(framePing, flagEnd, "12345678") + h2(frameSettings, 0, "")

			sent, settings, others string
			count, pings           int // of the client's SETTINGS and PINGs
			ofGRPC                 = r.IntN(3)
			acked                  = r.IntN(ofGRPC + 1) // of grpc-go's SETTINGS, before the request
		)
		set := func() {
			s := strings.Repeat("\x00\x0a1234", r.IntN(3))
			sent, settings, count = sent+h2(frameSettings, 0, s), settings+s, count+1
		}
		set()
		sent += strings.Repeat(ack, acked)
		for range r.IntN(5) {
			switch f := h2([]byte{frameWindowUpdate, framePriority, 200}[r.IntN(3)], flagEnd, strings.Repeat("y", r.IntN(20))); r.IntN(3) {
			case 0:
				set()
			case 1:
				sent += h2(framePing, 0, "12345678")
				pings++
			case 2:
				sent, others = sent+f, others+f
			}
		}
		sent += request + data + strings.Repeat(ack, ofGRPC-acked) + later + ack // the last one acknowledges net/http's SETTINGS
		want := preface + string(frame(nil, frameSettings, 0, 0, settings)) + others + request + data + later + ack

		near, far := net.Pipe()
		grpc := func(h Handover) { go actAsGRPC(h.Conn, ofGRPC, r.IntN(3), sizes(1, 30)) }
		got := make(chan string)
		http := func(h Handover) {
			go func() {
				defer h.Conn.Close()
				var writes sync.WaitGroup
				defer writes.Wait()
				writes.Go(func() { // the second ack answers the client's later SETTINGS
					writePieces(h.Conn, h2(frameSettings, 0, "")+ack+ack+h2(200, 0, "end"), sizes(2, 10))
				})
				read := string(h.First)
				for b := make([]byte, sizes(3, 50)()); len(read) < len(want); {
					n, err := h.Conn.Read(b)
					if read += string(b[:n]); err != nil {
						break
					}
				}
				got <- read
			}()
		}
		kinds := make(chan map[string]int)
		go func() { kinds <- readKinds(near) }()
		go writePieces(near, preface+sent, sizes(4, 60))
		first := make([]byte, len(preface))
		if _, err := io.ReadFull(far, first); err != nil {
			t.Fatal(err)
		}
		TakeHTTP2(Handover{Conn: far, First: first}, grpc, http, inAMinute)
		if read := <-got; read != want {
			t.Fatalf("seed %d: net/http read\n%q, want\n%q", seed, read, want)
		}
		k := <-kinds
		if k["ack"] != count+1 || k["pong"] != pings || k["end"] != 1 || k["WINDOW_UPDATE"]+k["GOAWAY"] > 0 || k["SETTINGS"] < 1 || k["SETTINGS"] > ofGRPC+1 {
			t.Fatalf("seed %d: the client, which has sent %d SETTINGS and %d PINGs, got %v", seed, count+1, pings, k)
		}
	}
}

// actAsGRPC sends SETTINGS and a WINDOW_UPDATE, and acknowledges the client's SETTINGS and PINGs, but
// not more than most of them. At the end it says goodbye as grpc-go does.
func actAsGRPC(conn net.Conn, settings, most int, size func() int) {
	answered := 0
	write := func(s string) { writePieces(conn, s, size) }
	write(strings.Repeat(h2(frameSettings, 0, "\x00\x041234"), settings) + h2(frameWindowUpdate, 0, "1234"))
	in := bufio.NewReaderSize(conn, 16+size())
	_, _ = in.Discard(len(preface))
	for {
		head, err := readFrame(in)
		switch {
		case err != nil:
			write(h2(frameGoAway, 0, "too late"))
			_ = conn.SetDeadline(time.Unix(1, 0))
			_ = conn.Close()
			return
		case head[4] != 0:
		case head[3] == frameSettings && answered < most:
			answered++
			write(h2(frameSettings, flagEnd, ""))
		case head[3] == framePing && answered < most:
			answered++
			write(h2(framePing, flagEnd, "12345678"))
		}
	}
}

// readFrame reads a frame, and returns its head.
func readFrame(r io.Reader) (head [frameHead]byte, err error) {
	if _, err = io.ReadFull(r, head[:]); err == nil {
		_, err = io.CopyN(io.Discard, r, int64(payloadSize(head[:])))
	}
	return head, err
}

// readKinds reads frames to the end, and counts them.
func readKinds(r io.Reader) map[string]int {
	kinds := make(map[string]int)
	for in := bufio.NewReader(r); ; {
		head, err := readFrame(in)
		switch {
		case err != nil:
			return kinds
		case head[3] == frameSettings && head[4] == flagEnd:
			kinds["ack"]++
		case head[3] == framePing && head[4] == flagEnd:
			kinds["pong"]++
		default:
			kinds[map[byte]string{frameSettings: "SETTINGS", frameWindowUpdate: "WINDOW_UPDATE", frameGoAway: "GOAWAY", 200: "end"}[head[3]]]++
		}
	}
}

// FuzzContentType checks that no header block makes the listener fail.
func FuzzContentType(f *testing.F) {
	f.Add([]byte(plainBlock("application/grpc")))
	f.Add([]byte("\x0f\x10\x8b" + codedGRPC))
	f.Add([]byte("\x40\x89" + codedName + "\x8c" + codedGRPC + "\xfb"))
	f.Add([]byte("\x7f\xff\xff\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, block []byte) { serverFor(block) })
}
