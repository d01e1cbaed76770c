package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nearcall/nearcall/internal/link"
)

var update = flag.Bool("update", false, "write the golden vectors anew")

// A vector is the output of one side of a connection, with its meaning. It also serves
// implementations in other languages.
type vector struct {
	About  string    `json:"about"`
	From   string    `json:"from"` // client or server
	Hex    []string  `json:"hex"`  // of each frame, or of the first line
	Frames []meaning `json:"frames"`
}

// A meaning is the decoded content of a frame. Byte strings are in hex.
type meaning struct {
	Kind   string `json:"kind"`
	Stream uint64 `json:"stream,omitempty"`

	Hello *Hello `json:"hello,omitempty"`
	Code  uint64 `json:"code,omitempty"`
	Text  string `json:"text,omitempty"`
	N     uint64 `json:"n,omitempty"`
	Bytes string `json:"bytes,omitempty"`

	Flags   []string       `json:"flags,omitempty"`
	Method  string         `json:"method,omitempty"`
	Profile []string       `json:"profile,omitempty"` // authority, user agent, subtype, encoding, accept
	Timeout string         `json:"timeout,omitempty"`
	Header  [][2]string    `json:"metadata,omitempty"` // of a call or a response
	Status  map[string]any `json:"status,omitempty"`
	Trailer [][2]string    `json:"trailer,omitempty"`
	Size    int            `json:"size,omitempty"`
	Place   int            `json:"place,omitempty"`
}

var kindNames = map[Kind]string{
	KindHello: "HELLO", KindPart: "PART", KindReset: "RESET", KindCredit: "CREDIT", KindPing: "PING",
	KindPong: "PONG", KindDrain: "DRAIN", KindBye: "BYE", KindReturn: "RETURN",
}

func flagNames(k Kind) (names []string) {
	for i, name := range []string{"HEAD", "MESSAGE", "PIECE", "MORE", "END", "COMPRESSED", "PLACE"} {
		if k&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

func pairs(md metadata.MD) (all [][2]string) {
	for k, values := range md {
		for _, v := range values {
			if strings.HasSuffix(k, "-bin") {
				v = hex.EncodeToString([]byte(v))
			}
			if len(v) > 100 {
				v = fmt.Sprintf("%s... (%d bytes)", v[:20], len(v))
			}
			all = append(all, [2]string{k, v})
		}
	}
	return all
}

// say decodes a frame, sent by the client if fromClient is set.
func say(t *testing.T, d *Decoder, f Frame, parts map[uint64][]byte, fromClient bool) meaning {
	t.Helper()
	s := meaning{Kind: kindNames[f.Kind], Stream: f.Stream}
	var err error
	switch f.Kind {
	case KindHello:
		var h Hello
		h, err = ParseHello(f.Body)
		s.Hello = &h
	case KindReset:
		var code ResetCode
		code, s.Text, err = ParseReset(f.Body)
		s.Code = uint64(code)
	case KindBye:
		var code ByeCode
		code, s.Text, err = ParseBye(f.Body)
		s.Code = uint64(code)
	case KindCredit:
		var n int64
		n, err = ParseCredit(f.Body)
		s.N = uint64(n)
	case KindReturn:
		s.Place, err = ParseReturn(f.Body)
	case KindDrain:
		s.N, err = ParseDrain(f.Body)
	case KindPing, KindPong, KindPart:
		s.Bytes = abridged(f.Body)
		if f.Kind == KindPart {
			parts[f.Stream] = append(parts[f.Stream], f.Body...)
		}
	default:
		s.Kind, s.Flags = "STREAM", flagNames(f.Kind)
		var rc Received
		rc, err = d.Stream(f, parts[f.Stream], fromClient == (f.Stream%2 == 1))
		delete(parts, f.Stream)
		if rc.Open != nil {
			p := rc.Open.Profile
			s.Method, s.Header = rc.Open.Method, pairs(rc.Open.Sent())
			s.Profile = []string{p.Authority, p.UserAgent, p.ContentSubtype, p.Encoding, p.Accept}
			if rc.Timeout > 0 {
				s.Timeout = rc.Timeout.String()
			}
		}
		if rc.Header != nil {
			s.Header = pairs(rc.Header)
		}
		if rc.End != nil {
			s.Status = map[string]any{"code": int(rc.End.Status.Code())}
			if m := rc.End.Status.Message(); m != "" {
				s.Status["message"] = m
			}
			if p := rc.End.Status.Proto(); len(p.GetDetails()) > 0 {
				details, err := proto.MarshalOptions{Deterministic: true}.Marshal(p)
				if err != nil {
					t.Fatal(err)
				}
				s.Status["details"] = hex.EncodeToString(details)
			}
			s.Trailer = pairs(rc.End.Trailer)
		}
		s.Size, s.Place, s.Bytes = rc.Size, rc.Place, abridged(rc.Data)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// abridged returns b in hex, shortened if it is long.
func abridged(b []byte) string {
	if len(b) > 64 {
		return fmt.Sprintf("%x... (%d bytes)", b[:16], len(b))
	}
	return hex.EncodeToString(b)
}

func steps(credit int, all ...*Step) []byte {
	var e Encoder
	var b []byte
	for _, s := range all {
		for !s.Done() {
			b, _ = e.Append(b, s, credit)
		}
	}
	return b
}

func TestGoldenVectors(t *testing.T) {
	ping := []byte("\x0a\x04ping")
	detailed, err := status.New(codes.ResourceExhausted, "slow down").WithDetails(durationpb.New(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	hello := Hello{Version: 1, Stream: 1 << 18, Connection: 1 << 22, Calls: 1000, Block: 1 << 20, Ping: 10_000, IdlePing: 300_000}
	long := strings.Repeat("0123456789abcdef", 4500)
	for name, v := range map[string]struct {
		about, from string
		b           []byte
	}{
		"hello": {"The line and the HELLO that a connection begins with.", "client", AppendHello([]byte(Magic), &hello)},
		"unary-request": {"Two unary calls: the second refers to the names and the profile of the first.", "client", steps(1000,
			&Step{Stream: 1, Open: open("/shop.Shop/Get", metadata.Pairs("trace", "17")), Timeout: 1500 * time.Millisecond, HasMessage: true, Message: ping, HalfClose: true},
			&Step{Stream: 3, Open: open("/shop.Shop/Get", metadata.Pairs("trace", "18")), HasMessage: true, Message: ping, HalfClose: true})},
		"unary-reply": {"Answers: OK, OK with metadata in header and trailer, an error without a header, an error with details.", "server", steps(1000,
			&Step{Stream: 1, Header: metadata.MD{}, HasMessage: true, Message: ping, End: &link.End{}},
			&Step{Stream: 3, Header: metadata.Pairs("h", "1"), HasMessage: true, End: &link.End{Trailer: metadata.Pairs("t-bin", "\x00\xff")}},
			&Step{Stream: 5, End: &link.End{Status: status.New(codes.NotFound, "no such item")}},
			&Step{Stream: 7, End: &link.End{Status: detailed}})},
		"long-names": {"A key of 256 bytes gets a number, and one of 257 bytes none.", "client", steps(1000,
			&Step{Stream: 1, Open: open("/shop.Shop/Get", metadata.Pairs(strings.Repeat("k", 256), "1")), HalfClose: true},
			&Step{Stream: 3, Open: open("/shop.Shop/Get", metadata.Pairs(strings.Repeat("k", 256), "2")), HalfClose: true},
			&Step{Stream: 5, Open: open("/shop.Shop/Get", metadata.Pairs(strings.Repeat("k", 257), "3")), HalfClose: true},
			&Step{Stream: 7, Open: open("/shop.Shop/Get", metadata.Pairs(strings.Repeat("k", 257), "4")), HalfClose: true})},
		"headless-reply": {"A message without a header, which is empty then.", "server", steps(1000,
			&Step{Stream: 1, HasMessage: true, Message: ping}, &Step{Stream: 1, HasMessage: true, Message: ping, End: &link.End{}})},
		"pieces": {"A message in pieces, as credit of 25 bytes at a time lets it go, and the half-close with the last.", "client", steps(25,
			&Step{Stream: 1, Open: open("/shop.Shop/Import", nil), HasMessage: true, Message: bytes.Repeat([]byte("abcdefgh"), 8), HalfClose: true})},
		"compressed": {"A call with an encoding, and a message that is compressed with it (here it only says so).", "client", steps(1000,
			&Step{Stream: 1, Open: &link.CallHeader{Method: "/shop.Shop/Get", Profile: &link.Profile{Authority: "shop", UserAgent: "ua", ContentSubtype: "json", Encoding: "gzip", Accept: "gzip,zstd"}},
				HasMessage: true, Message: []byte("compressed"), Compressed: true, HalfClose: true})},
		"compressed-reply": {"An answer that is compressed with another encoding than the call's, which its header says.", "server", steps(1000,
			&Step{Stream: 1, Header: metadata.Pairs(link.EncodingKey, "zstd"), HasMessage: true, Message: []byte("compressed"), Compressed: true, End: &link.End{}})},
		"places": {"Over shared memory: a unary call whose message is in memory that both see, and a place that is given back.", "client", AppendReturn(steps(1000,
			&Step{Stream: 1, Open: open("/shop.Shop/Import", nil), HasMessage: true, Placed: true, Place: 1 << 20, Size: 1_000_003, HalfClose: true}), 1<<16)},
		"parts": {"A head that is longer than a frame: PARTs, and no name to remember.", "client", steps(1000,
			&Step{Stream: 1, Open: open("/shop.Shop/Get", metadata.Pairs("long", long)), HalfClose: true})},
		"parts-reply": {"An answer whose header is longer than a frame, and the end of which follows in a separate frame.", "server", steps(1000,
			&Step{Stream: 1, Header: metadata.Pairs("long", long), HasMessage: true, Message: ping, End: &link.End{Trailer: metadata.Pairs("t", "1")}})},
		"parts-end": {"An error whose trailer is longer than a frame.", "server", steps(1000,
			&Step{Stream: 1, End: &link.End{Status: status.New(codes.Aborted, "try again"), Trailer: metadata.Pairs("long", long)}})},
		"places-reply": {"Over shared memory: an answer whose message is in memory that both see.", "server", steps(1000,
			&Step{Stream: 1, Header: metadata.MD{}, HasMessage: true, Placed: true, Place: 0, Size: 100_000, End: &link.End{}})},
		"callback": {"A call that the server makes.", "server", steps(1000,
			&Step{Stream: 2, Open: open("/shop.Till/Ring", nil), HasMessage: true, Message: ping, HalfClose: true})},
		"large-numbers": {"Numbers that a double does not have: they may be read as 2^53.", "server", AppendDrain(AppendCredit(AppendHello(nil,
			&Hello{Version: 1<<62 - 1, Features: 1<<61 | 1<<53, Stream: 1<<53 + 1, Connection: 1 << 60, Calls: 1<<62 - 1, Block: 1<<31 - 1, Ping: 1<<53 - 1, IdlePing: 1<<53 + 1}),
			0, 1<<61+1), 1<<62-1)},
		"control": {"What speaks of calls and of the connection.", "server", AppendBye(AppendDrain(AppendPing(AppendPing(AppendCredit(AppendCredit(
			AppendReset(nil, 1, ResetUnprocessed, "the server is stopping"), 3, 65536), 0, 128), KindPing, [8]byte{1, 2, 3, 4, 5, 6, 7, 8}),
			KindPong, [8]byte{8, 7, 6, 5, 4, 3, 2, 1}), 41), ByeClosed, "the server was stopped")},
	} {
		t.Run(name, func(t *testing.T) {
			got := vector{About: v.about, From: v.from}
			b := v.b
			if rest, magic := bytes.CutPrefix(b, []byte(Magic)); magic {
				got.Hex, b = append(got.Hex, hex.EncodeToString([]byte(Magic))), rest
			}
			d := Decoder{Places: strings.HasPrefix(name, "places")}
			parts := make(map[uint64][]byte)
			for _, f := range frames(t, b) {
				n := len(b) - len(skip(t, b))
				got.Hex, b = append(got.Hex, hex.EncodeToString(b[:n])), b[n:]
				got.Frames = append(got.Frames, say(t, &d, f, parts, v.from == "client"))
			}
			golden(t, filepath.Join("frames", name+".json"), got)
		})
	}
}

// skip returns b without its first frame.
func skip(t *testing.T, b []byte) []byte {
	t.Helper()
	_, n, err := Next(b)
	if err != nil {
		t.Fatal(err)
	}
	return b[n:]
}

// golden compares v, as JSON, with a file in testdata, or writes the file with -update.
func golden(t *testing.T, file string, v any) {
	t.Helper()
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		t.Fatal(err)
	}
	file = filepath.Join("testdata", file)
	if *update {
		if err := os.WriteFile(file, out.Bytes(), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(out.Bytes(), want) {
		t.Errorf("%v; %s differs, say go test -update if that is meant. Now:\n%.2000s", err, file, out.Bytes())
	}
}
