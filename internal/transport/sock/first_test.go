package sock

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

func TestProtocolsAreToldByTheirFirstBytes(t *testing.T) {
	for first, want := range map[string]protocol{
		"":                                  undecided,
		"nearcall/1":                        undecided,
		"nearcall/1\n":                      native,
		"nearcall/1\n\x05\x00":              native,
		"nearcall/2\n":                      unknown,
		"near":                              undecided,
		"nearby":                            unknown,
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r":    undecided,
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":  undecided,
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nx": http2,
		preface + "\x00\x00\x00\x05":        http2,
		preface + noSettings[:8]:            undecided,
		preface + noSettings:                http2,
		"PRI * HTTP/1.1":                    http1,
		"P":                                 undecided,
		"POST /":                            http1,
		"GET":                               undecided,
		"GET ":                              http1,
		"GETTING?":                          unknown,
		" GET":                              unknown,
		"AVERYLONGMETHODINDEEDX":            unknown,
		"\x16":                              undecided,
		"\x16\x03":                          clientHello,
		"\x16\x04":                          unknown,
		"\x00":                              unknown,
	} {
		if got := protocolOf([]byte(first), ""); got != want {
			t.Errorf("%q: %d, want %d", first, got, want)
		}
	}
}

// The vectors of the question.
type vectors struct {
	Answer  string
	Clients []struct {
		About, Hex string
		Asks       bool
	}
	Servers []struct{ About, Hex, Is string }
}

func readVectors(t *testing.T) (v vectors) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "wire", "testdata", "question.json"))
	if err == nil {
		err = json.Unmarshal(b, &v)
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestTheQuestionIsTold: by a setting in the first SETTINGS. While that can still come, the protocol
// is undecided, and that is never longer than for one frame.
func TestTheQuestionIsTold(t *testing.T) {
	tell := func(about string, b []byte, asks bool) {
		want := http2
		if asks {
			want = question
		}
		if got := protocolOf(b, ""); got != want {
			t.Errorf("%s %d, want %d", about, got, want)
		}
		for n := range b {
			if got := protocolOf(b[:n], ""); got != undecided && (got != http2 || asks) {
				t.Fatalf("%s The first %d of %d bytes are %d", about, n, len(b), got)
			}
		}
		after := frame(bytes.Clone(b), frameSettings, 0, 0, wire.Setting)
		if got := protocolOf(after, ""); got != want || asks && questionSize(after) != len(b) {
			t.Errorf("%s With more bytes it is %d, want %d", about, got, want)
		}
	}
	for _, c := range readVectors(t).Clients {
		tell(c.About, unhex(t, c.Hex), c.Asks)
	}
	full := strings.Repeat("\x00\x04\x00\x01\x00\x00", maxFrame/settingSize)
	tell("A full frame.", frame([]byte(preface), frameSettings, 0, 0, full[settingSize:]+wire.Setting), true)
	tell("A larger frame.", frame([]byte(preface), frameSettings, 0, 0, full+wire.Setting), false)
}

// FuzzFirst checks that the beginning of a connection is told, however it arrives: no byte that
// follows changes the decision, and what stays undecided is bounded.
func FuzzFirst(f *testing.F) {
	for _, s := range []string{wire.Question, preface + noSettings, wire.Magic, "nearcall/1 shm\n\x02\x01\x00", "GET / HTTP/1.1\r\n", "\x16\x03\x01"} {
		f.Add([]byte(s), uint8(1))
		f.Add([]byte(s+s), uint8(7))
	}
	f.Add(frame([]byte(preface), frameSettings, 0, 0, strings.Repeat("\x00\x04\x00\x01\x00\x00", maxFrame/settingSize-1)+wire.Setting), uint8(200))
	f.Fuzz(func(t *testing.T, b []byte, piece uint8) {
		line := &Upgrade{Line: "nearcall/1 shm\n"}
		r := &pieces{rest: b, size: max(1, int(piece))}
		first, got, err := Options{Upgrade: line}.readFirst(readConn{r: r}, nil)
		want := protocolOf(b, line.Line)
		if len(b) == 0 {
			want = undecided
		}
		if (err == nil) != (want != undecided) || got != want {
			t.Fatalf("%d, %v, want %d", got, err, want)
		}
		switch {
		case err == nil && !bytes.HasPrefix(b, first), r.taken > len(preface)+frameHead+maxFrame+2*512+r.size:
			t.Fatalf("%d of %d bytes were read, and %d kept", r.taken, len(b), len(first))
		case got == question && (questionSize(first) > len(first) || !strings.HasPrefix(string(first), preface)):
			t.Fatalf("a question of %d bytes in %d", questionSize(first), len(first))
		}
	})
}

// pieces is a reader that returns few bytes at a time.
type pieces struct {
	rest        []byte
	size, taken int
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.rest[:min(p.size, len(p.rest))])
	p.rest, p.taken = p.rest[n:], p.taken+n
	return n, nil
}

// A readConn is a connection that can only be read.
type readConn struct {
	net.Conn
	r io.Reader
}

func (c readConn) Read(b []byte) (int, error) { return c.r.Read(b) }

// Another server can take a connection of an ordinary gRPC client, together with what was
// read from it.
func TestConnectionsOfGRPCClientsMayBeTaken(t *testing.T) {
	inner := bufconn.Listen(1 << 10)
	taken := make(chan string, 1)
	lis := &Listener{Options: Options{Config: serverOptions()}, Listener: inner, GRPC: func(h Handover) {
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
		lis := &Listener{Listener: inner, Options: Options{Config: serverOptions(), RequireUpgrade: requires}, HTTP1: func(h Handover) {
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
			lis := &Listener{Options: Options{Config: serverOptions()}, Listener: inner}
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
