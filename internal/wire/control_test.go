package wire

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

// one decodes b, which must be one frame.
func one(t *testing.T, b []byte) Frame {
	t.Helper()
	all := frames(t, b)
	if len(all) != 1 {
		t.Fatalf("%d frames", len(all))
	}
	return all[0]
}

func TestControlFramesArrive(t *testing.T) {
	h := Hello{Version: 1, Features: 5, Stream: MinWindow, Connection: 1 << 30, Calls: 100, Block: 16 << 20}
	f := one(t, AppendHello(nil, &h))
	if got, err := ParseHello(append(f.Body, "of a later version"...)); f.Kind != KindHello || got != h || err != nil {
		t.Errorf("HELLO: %+v, %v", got, err)
	}
	h.Features, h.Near = FeatureNear, "an offer"
	f = one(t, AppendHello(nil, &h))
	if got, err := ParseHello(append(f.Body, "of a later version"...)); got != h || err != nil {
		t.Errorf("HELLO with an offer: %+v, %v", got, err)
	}
	if f = one(t, AppendStay(nil)); f.Kind != KindStay || !f.Kind.Ignorable() || f.Stream != 0 || len(f.Body) > 0 {
		t.Errorf("STAY: %+v", f)
	}
	f = one(t, AppendReset(nil, 7, ResetExhausted, "why"))
	if code, text, err := ParseReset(f.Body); f.Kind != KindReset || f.Stream != 7 || code != ResetExhausted || text != "why" || err != nil {
		t.Errorf("RESET: %d, %q, %v", code, text, err)
	}
	f = one(t, AppendBye(nil, ByePings, "too often"))
	if code, text, err := ParseBye(f.Body); f.Kind != KindBye || code != ByePings || text != "too often" || err != nil {
		t.Errorf("BYE: %d, %q, %v", code, text, err)
	}
	for _, id := range []uint64{0, 9} {
		f = one(t, AppendCredit(nil, id, 70000))
		if n, err := ParseCredit(f.Body); f.Kind != KindCredit || f.Stream != id || n != 70000 || err != nil {
			t.Errorf("CREDIT: %d, %v", n, err)
		}
	}
	for _, kind := range []Kind{KindPing, KindPong} {
		data := [8]byte{1, 2, 3, 4, 5, 6, 7, 8}
		f = one(t, AppendPing(nil, kind, data))
		if got, err := ParsePing(f.Body); f.Kind != kind || got != data || err != nil {
			t.Errorf("PING: %v, %v", got, err)
		}
	}
	f = one(t, AppendDrain(nil, MaxUint))
	if last, err := ParseDrain(f.Body); f.Kind != KindDrain || last != MaxUint || err != nil {
		t.Errorf("DRAIN: %d, %v", last, err)
	}
}

func TestLongTextsAreCutBetweenRunes(t *testing.T) {
	for pad := range utf8.UTFMax {
		f := one(t, AppendReset(nil, 1, ResetUnavailable, strings.Repeat("x", pad)+strings.Repeat("€", maxText)))
		if _, text, err := ParseReset(f.Body); err != nil || len(text) > maxText || len(text) < maxText-utf8.UTFMax || !utf8.ValidString(text) {
			t.Errorf("%d bytes, %v", len(text), err)
		}
	}
}

func TestAMalformedControlFrameIsAProtocolError(t *testing.T) {
	hello := func(change func(*Hello)) []byte {
		h := Hello{Version: 1, Stream: MinWindow, Connection: MinWindow, Block: MinBlock}
		change(&h)
		return one(t, AppendHello(nil, &h)).Body
	}
	for name, err := range map[string]error{
		"HELLO, version 0":         second(ParseHello(hello(func(h *Hello) { h.Version = 0 }))),
		"HELLO, small window":      second(ParseHello(hello(func(h *Hello) { h.Stream-- }))),
		"HELLO, small connection":  second(ParseHello(hello(func(h *Hello) { h.Connection-- }))),
		"HELLO, small blocks":      second(ParseHello(hello(func(h *Hello) { h.Block-- }))),
		"HELLO, offer cut short":   second(ParseHello(hello(func(h *Hello) { h.Features, h.Near = FeatureNear, "offer" })[:len(hello(func(*Hello) {}))+2])),
		"HELLO cut short":          second(ParseHello([]byte{1, 0})),
		"RESET without a code":     third(ParseReset(nil)),
		"BYE without a code":       third(ParseBye(nil)),
		"CREDIT of nothing":        second(ParseCredit([]byte{0})),
		"CREDIT without a number":  second(ParseCredit(nil)),
		"CREDIT and more":          second(ParseCredit([]byte{1, 1})),
		"PING of seven bytes":      second(ParsePing(make([]byte, 7))),
		"PING of nine bytes":       second(ParsePing(make([]byte, 9))),
		"DRAIN without a number":   second(ParseDrain(nil)),
		"DRAIN and more":           second(ParseDrain([]byte{1, 1})),
		"length 0":                 third(Next([]byte{0, 0})),
		"length 1":                 third(Next([]byte{1, 0, 5})),
		"kind 0":                   third(Next([]byte{2, 0, 0, 0})),
		"kind 10":                  third(Next([]byte{2, 0, 10, 0})),
		"RETURN of a call":         third(Next([]byte{2, 0, 9, 1})),
		"no number of a call":      third(Next([]byte{2, 0, 5, 0x80})),
		"STREAM of the connection": third(Next([]byte{2, 0, 0x81, 0})),
		"PART of the connection":   third(Next([]byte{2, 0, 2, 0})),
		"RESET of the connection":  third(Next([]byte{2, 0, 3, 0})),
		"HELLO of a call":          third(Next([]byte{2, 0, 1, 1})),
		"PING of a call":           third(Next([]byte{2, 0, 5, 1})),
		"DRAIN of a call":          third(Next([]byte{2, 0, 7, 1})),
		"BYE of a call":            third(Next([]byte{2, 0, 8, 1})),
	} {
		if !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second[A any](_ A, err error) error        { return err }
func third[A, B any](_ A, _ B, err error) error { return err }

func TestUnknownKindsInTheRoomForExtensionsAreReported(t *testing.T) {
	for _, stream := range []byte{0, 1} {
		f, n, err := Next([]byte{3, 0, 0x40, stream, 'x'})
		if err != nil || n != 5 || !f.Kind.Ignorable() || f.Kind.Stream() {
			t.Errorf("%+v, %d, %v", f, n, err)
		}
	}
}

func TestAFrameThatIsNotThereYetIsNoError(t *testing.T) {
	whole := AppendCredit(nil, 1, 300)
	for n := range whole {
		if f, took, err := Next(whole[:n]); took != 0 || err != nil || !reflect.DeepEqual(f, Frame{}) {
			t.Errorf("of %d bytes: %+v, %d, %v", n, f, took, err)
		}
	}
	f, took, err := Next(append(bytes.Clone(whole), "more"...))
	if took != len(whole) || err != nil || len(f.Body) != 2 {
		t.Errorf("%+v, %d, %v", f, took, err)
	}
}
