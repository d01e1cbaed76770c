package sniff

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

	"github.com/nearcall/nearcall/internal/wire"
)

func TestProtocolsAreToldByTheirFirstBytes(t *testing.T) {
	for first, want := range map[string]Protocol{
		"":                                  Undecided,
		"nearcall/1":                        Undecided,
		"nearcall/1\n":                      Native,
		"nearcall/1\n\x05\x00":              Native,
		"nearcall/2\n":                      Unknown,
		"near":                              Undecided,
		"nearby":                            Unknown,
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r":    Undecided,
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":  Undecided,
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nx": HTTP2,
		preface + "\x00\x00\x00\x05":        HTTP2,
		preface + noSettings[:8]:            Undecided,
		preface + noSettings:                HTTP2,
		"PRI * HTTP/1.1":                    HTTP1,
		"P":                                 Undecided,
		"POST /":                            HTTP1,
		"GET":                               Undecided,
		"GET ":                              HTTP1,
		"GETTING?":                          Unknown,
		" GET":                              Unknown,
		"AVERYLONGMETHODINDEEDX":            Unknown,
		"\x16":                              Undecided,
		"\x16\x03":                          TLS,
		"\x16\x04":                          Unknown,
		"\x00":                              Unknown,
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
	b, err := os.ReadFile(filepath.Join("..", "wire", "testdata", "question.json"))
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
		want := HTTP2
		if asks {
			want = Question
		}
		if got := protocolOf(b, ""); got != want {
			t.Errorf("%s %d, want %d", about, got, want)
		}
		for n := range b {
			if got := protocolOf(b[:n], ""); got != Undecided && (got != HTTP2 || asks) {
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
// follows changes the decision, but SETTINGS that come with a question, and what stays undecided is
// bounded.
func FuzzFirst(f *testing.F) {
	for _, s := range []string{wire.Question, preface + noSettings, wire.Magic, "nearcall/1 shm\n\x02\x01\x00", "GET / HTTP/1.1\r\n", "\x16\x03\x01"} {
		f.Add([]byte(s), uint8(1))
		f.Add([]byte(s+s), uint8(7))
	}
	f.Add([]byte(wire.Question+noSettings), uint8(200))
	f.Add(frame([]byte(preface), frameSettings, 0, 0, strings.Repeat("\x00\x04\x00\x01\x00\x00", maxFrame/settingSize-1)+wire.Setting), uint8(200))
	f.Fuzz(func(t *testing.T, b []byte, piece uint8) {
		const line = "nearcall/1 shm\n"
		r := &pieces{rest: b, size: max(1, int(piece))}
		first, got, err := Read(readConn{r: r}, nil, line)
		want := protocolOf(b, line)
		if want == Question && got == HTTP2 && wasAnswered(first) {
			want = HTTP2
		}
		if len(b) == 0 {
			want = Undecided
		}
		if (err == nil) != (want != Undecided) || got != want {
			t.Fatalf("%d, %v, want %d", got, err, want)
		}
		switch {
		case err == nil && !bytes.HasPrefix(b, first), r.taken > len(preface)+frameHead+maxFrame+2*512+r.size:
			t.Fatalf("%d of %d bytes were read, and %d kept", r.taken, len(b), len(first))
		case got == Question && (questionSize(first) > len(first) || !strings.HasPrefix(string(first), preface)):
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
