package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"path/filepath"
	"strings"
	"testing"
)

// A refusal is the output of one side of a connection after its HELLO. Its last frame
// breaks a rule. The receiver's limit for blocks is MinBlock.
type refusal struct {
	About  string   `json:"about"`
	From   string   `json:"from"`             // client or server
	Places bool     `json:"places,omitempty"` // with shared memory
	Hex    []string `json:"hex"`              // of each frame
	Ends   string   `json:"ends"`             // what the violation ends: the connection, or only the call
}

// The values of refusal.Ends.
const (
	theConnection = "connection"
	theCall       = "call"
)

// headOf returns the head of a call with the method /m and a new, empty profile,
// followed by more.
func headOf(more ...byte) []byte {
	return append([]byte{nameLiteral, 2, '/', 'm', profileNew, 0, 0, 0, 0, 0, 0}, more...)
}

// names returns a call with n new names of one byte.
func names(id uint64, n int) []byte {
	return bare(KindStream|FlagHead, id, headOf(append(binary.AppendUvarint(nil, uint64(n)), bytes.Repeat([]byte{nameNew, 1, 'k', 0}, n)...)...)...)
}

// bare returns a frame with the given body.
func bare(k Kind, id uint64, body ...byte) []byte {
	return finishFrame(append(beginFrame(nil, k, id), body...), 0)
}

func TestVectorsThatMustBeRefused(t *testing.T) {
	const head, message = KindStream | FlagHead, KindStream | FlagMessage
	opened := bare(head, 1, headOf(0)...)
	for name, r := range map[string]struct {
		about, from string
		places      bool
		ends        string
		frames      [][]byte
	}{
		"entries-of-2-bytes": {"A header of 500 entries that take two bytes each: its size is 17,000 and more.", "client", false, theCall,
			[][]byte{bare(head, 1, headOf(append(append(binary.AppendUvarint(nil, 500), nameNew, 1, 'k', 0), bytes.Repeat([]byte{nameFirst, 0}, 499)...)...)...)}},
		"keys-in-turns": {"Metadata whose values of one key have those of another between them.", "client", false, theCall,
			[][]byte{bare(head, 1, headOf(3, nameNew, 1, 'a', 0, nameNew, 1, 'b', 0, nameFirst, 0)...)}},
		"key":            {"A key in upper case.", "client", false, theCall, [][]byte{bare(head, 1, headOf(1, nameLiteral, 1, 'K', 0)...)}},
		"value":          {"A value with a line feed.", "client", false, theCall, [][]byte{bare(head, 1, headOf(1, nameLiteral, 1, 'k', 1, '\n')...)}},
		"method":         {"A method with a control character.", "client", false, theCall, [][]byte{bare(head, 1, nameLiteral, 2, '/', 1, 0, 0, 0, 0, 0, 0, 0, 0)}},
		"status-utf8":    {"The message of a status is not UTF-8.", "server", false, theCall, [][]byte{bare(KindStream|FlagEnd, 1, 5, 1, 0xff, 0, 0)}},
		"entry-count":    {"More entries than bytes for them.", "client", false, theConnection, [][]byte{bare(head, 1, headOf(2, nameLiteral, 1, 'k', 0)...)}},
		"long-name":      {"A name of 257 bytes to remember.", "client", false, theConnection, [][]byte{bare(head, 1, append(appendString([]byte{nameNew}, strings.Repeat("n", 257)), 0, 0, 0, 0, 0, 0, 0, 0)...)}},
		"unknown-name":   {"A reference to a name that did not come.", "client", false, theConnection, [][]byte{bare(head, 1, nameFirst)}},
		"new-in-pieces":  {"A new name in a block that is sent in pieces.", "client", false, theConnection, [][]byte{bare(KindPart, 1, nameNew, 2), bare(head, 1, '/', 'm', 0, 0, 0, 0, 0, 0, 0, 0)}},
		"no-block":       {"Parts of a block, and a frame that has none.", "client", false, theConnection, [][]byte{opened, bare(KindPart, 1, 0), bare(message, 1)}},
		"flags":          {"MORE beside neither MESSAGE nor PIECE.", "client", false, theConnection, [][]byte{opened, bare(KindStream|FlagMore, 1)}},
		"empty-piece":    {"A piece of a message that is empty.", "client", false, theConnection, [][]byte{opened, bare(message|FlagMore, 1, 5)}},
		"place":          {"A place where there is no shared memory.", "client", false, theConnection, [][]byte{opened, bare(message|FlagPlace, 1, 0x80, 0x80, 0x04, 0)}},
		"small-place":    {"A message of 5 bytes in shared memory.", "client", true, theConnection, [][]byte{opened, bare(message|FlagPlace, 1, 5, 0)}},
		"long-number":    {"A number that is not in its shortest form.", "client", false, theConnection, [][]byte{bare(KindDrain, 0, 0x81, 0)}},
		"no-credit":      {"A credit of nothing.", "server", false, theConnection, [][]byte{bare(KindCredit, 0, 0)}},
		"short-ping":     {"A PING of 7 bytes.", "client", false, theConnection, [][]byte{bare(KindPing, 0, make([]byte, 7)...)}},
		"kind":           {"A kind that does not exist.", "client", false, theConnection, [][]byte{bare(0x0a, 0)}},
		"credit-2-62":    {"A number of 2^62.", "server", false, theConnection, [][]byte{bare(KindCredit, 0, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x40)}},
		"number-10":      {"A number of 10 bytes.", "client", false, theConnection, [][]byte{bare(KindDrain, 0, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1)}},
		"version-0":      {"A HELLO of version 0.", "client", false, theConnection, [][]byte{AppendHello(nil, &Hello{Stream: MinWindow, Connection: MinWindow, Block: MinBlock})}},
		"small-window":   {"A HELLO with a window of 65535 bytes.", "client", false, theConnection, [][]byte{AppendHello(nil, &Hello{Version: 1, Stream: MinWindow - 1, Connection: MinWindow, Block: MinBlock})}},
		"small-block":    {"A HELLO that takes blocks of 16383 bytes.", "client", false, theConnection, [][]byte{AppendHello(nil, &Hello{Version: 1, Stream: MinWindow, Connection: MinWindow, Block: MinBlock - 1})}},
		"short-hello":    {"A HELLO whose last field is missing.", "client", false, theConnection, [][]byte{bare(KindHello, 0, 1, 0, 0x80, 0x80, 0x04, 0x80, 0x80, 0x04, 0, 0x80, 0x80, 0x01, 0)}},
		"long-ping":      {"A PING of 9 bytes.", "client", false, theConnection, [][]byte{bare(KindPing, 0, make([]byte, 9)...)}},
		"empty-key":      {"An empty key.", "client", false, theCall, [][]byte{bare(head, 1, headOf(1, nameLiteral, 0, 0)...)}},
		"colon":          {"A key that begins with a colon.", "client", false, theCall, [][]byte{bare(head, 1, headOf(1, nameLiteral, 5, ':', 'p', 'a', 't', 'h', 0)...)}},
		"delete":         {"A value with the byte 0x7f.", "client", false, theCall, [][]byte{bare(head, 1, headOf(1, nameLiteral, 1, 'k', 1, 0x7f)...)}},
		"code":           {"A status code of 33 bits.", "server", false, theCall, [][]byte{bare(KindStream|FlagEnd, 1, 0x80, 0x80, 0x80, 0x80, 0x10, 0, 0, 0)}},
		"details":        {"Details that are a status with another code.", "server", false, theCall, [][]byte{bare(KindStream|FlagEnd, 1, 5, 0, 2, 8, 6, 0)}},
		"two-messages":   {"MESSAGE and PIECE in one frame.", "client", false, theConnection, [][]byte{opened, bare(message|FlagPiece, 1, 0)}},
		"head-and-piece": {"HEAD beside PIECE.", "client", false, theConnection, [][]byte{bare(head|FlagPiece, 1, headOf(0, 1)...)}},
		"end-and-more":   {"END beside MORE.", "client", false, theConnection, [][]byte{opened, bare(message|FlagMore|FlagEnd, 1, 5, 0)}},
		"compressed":     {"COMPRESSED without MESSAGE.", "client", false, theConnection, [][]byte{opened, bare(KindStream|FlagEnd|FlagCompressed, 1)}},
		"place-and-more": {"PLACE beside MORE.", "client", true, theConnection, [][]byte{opened, bare(message|FlagPlace|FlagMore, 1, 0x80, 0x80, 0x04, 0)}},
		"overlong-utf8":  {"The message of a status has a character of one byte in three.", "server", false, theCall, [][]byte{bare(KindStream|FlagEnd, 1, 5, 3, 0xe0, 0x81, 0x81, 0, 0)}},
		"detail-count":   {"A status with 500 details of two bytes: the size of its end is 17,000 and more.", "server", false, theCall, [][]byte{bare(KindStream|FlagEnd, 1, append(appendString([]byte{5, 0}, "\x08\x05"+strings.Repeat("\x1a\x00", 500)), 0)...)}},
		"table":          {"Names and profiles for which their table has no room: without the profiles it had.", "client", false, theConnection, [][]byte{names(1, 480), names(3, 480), names(5, 480), names(7, 480), names(9, 60)}},
		"no-stream":      {"A RESET of no call.", "client", false, theConnection, [][]byte{bare(KindReset, 0, 0)}},
	} {
		t.Run(name, func(t *testing.T) {
			v := refusal{About: r.about, From: r.from, Places: r.places, Ends: r.ends}
			for _, f := range r.frames {
				v.Hex = append(v.Hex, hex.EncodeToString(f))
			}
			golden(t, filepath.Join("refused", name+".json"), v)
			refused(t, v)
		})
	}
}

// refused checks that the last frame of v is refused, and only that one.
func refused(t *testing.T, v refusal) {
	t.Helper()
	d := Decoder{Places: v.Places, Block: MinBlock}
	parts := make(map[uint64][]byte)
	for i, text := range v.Hex {
		b, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		f, n, err := Next(b)
		var wrong error
		if err == nil && n != len(b) {
			t.Fatalf("frame %d of %d bytes takes %d", i, len(b), n)
		}
		if err == nil {
			wrong, err = read(&d, f, parts, (v.From == "client") == (f.Stream%2 == 1))
		}
		if err != nil && !errors.Is(err, ErrProtocol) {
			t.Errorf("%v is no protocol error", err)
		}
		ends := ""
		switch {
		case err != nil:
			ends = theConnection
		case wrong != nil:
			ends = theCall
		}
		want := ""
		if i == len(v.Hex)-1 {
			want = v.Ends
		}
		if ends != want {
			t.Errorf("frame %d ends %q, want %q: %v, %v", i, ends, want, err, wrong)
		}
	}
}

// read decodes a frame of any kind. wrong is an error of its call only; err is a
// protocol error of the connection.
func read(d *Decoder, f Frame, parts map[uint64][]byte, fromCaller bool) (wrong, err error) {
	switch f.Kind {
	case KindHello:
		return nil, second(ParseHello(f.Body))
	case KindReset:
		return nil, third(ParseReset(f.Body))
	case KindBye:
		return nil, third(ParseBye(f.Body))
	case KindCredit:
		return nil, second(ParseCredit(f.Body))
	case KindReturn:
		return nil, second(ParseReturn(f.Body))
	case KindPing, KindPong:
		return nil, second(ParsePing(f.Body))
	case KindDrain:
		return nil, second(ParseDrain(f.Body))
	case KindPart:
		parts[f.Stream] = append(parts[f.Stream], f.Body...)
		return nil, nil
	}
	rc, err := d.Stream(f, parts[f.Stream], fromCaller)
	delete(parts, f.Stream)
	return rc.Wrong, err
}
