package websocket

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
)

// frame encodes a frame. A client's is masked.
func frame(client bool, first byte, payload []byte) []byte {
	b := appendHeader(nil, opcode(first&0xf), len(payload))
	b[0] = first
	if !client {
		return append(b, payload...)
	}
	mask := [4]byte{0x37, 0xfa, 0x21, 0x3d}
	b[1] |= flagMasked
	b = append(b, mask[:]...)
	for i, c := range payload {
		b = append(b, c^mask[i%4])
	}
	return b
}

func binaryFrame(payload string) []byte {
	return frame(true, flagFinal|byte(opBinary), []byte(payload))
}

// read passes b to a server's reader in pieces of sizes.
func read(b []byte, sizes func() int) (payload []byte, r *reader, err error) {
	r = new(reader)
	for len(b) > 0 && err == nil {
		piece := bytes.Clone(b[:min(max(sizes(), 1), len(b))])
		b = b[len(piece):]
		var n int
		n, err = r.payload(piece)
		payload = append(payload, piece[:n]...)
	}
	return payload, r, err
}

func TestPayloadIsTheSameHoweverItIsSplit(t *testing.T) {
	var in, want []byte
	for _, n := range []int{0, 1, 7, 125, 126, 127, 65535, 65536, 70_000} {
		p := make([]byte, n)
		for i := range p {
			p[i] = byte(rand.Uint32())
		}
		want = append(want, p...)
		in = append(in, frame(true, flagFinal|byte(opBinary), p)...)
		// The same in three frames, with a PING between them.
		want = append(want, p...)
		in = append(in, frame(true, byte(opBinary), p[:n/3])...)
		in = append(in, frame(true, flagFinal|byte(opPing), []byte("alive"))...)
		in = append(in, frame(true, byte(opContinuation), p[n/3:n/2])...)
		in = append(in, frame(true, flagFinal|byte(opContinuation), p[n/2:])...)
	}
	for name, sizes := range map[string]func() int{
		"whole":        func() int { return len(in) },
		"byte by byte": func() int { return 1 },
		"at random":    func() int { return rand.IntN(20) },
		"in thousands": func() int { return rand.IntN(5000) },
	} {
		got, r, err := read(in, sizes)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v, want %d", name, len(got), err, len(want))
		}
		if !r.pinged || string(r.ping) != "alive" {
			t.Errorf("%s: the PING says %q", name, r.ping)
		}
	}
}

func TestWhatPeersMustNotSend(t *testing.T) {
	long := bytes.Repeat([]byte{'x'}, 126)
	huge := binary.BigEndian.AppendUint64([]byte{flagFinal | byte(opBinary), flagMasked | 127}, 1<<63)
	for name, c := range map[string]struct {
		in   []byte
		code CloseCode
		says string
	}{
		"text":                        {frame(true, flagFinal|byte(opText), []byte("hello")), closeText, "binary"},
		"a frame without a mask":      {frame(false, flagFinal|byte(opBinary), []byte("x")), closeProtocol, "does not mask"},
		"a reserved bit":              {frame(true, flagFinal|0x40|byte(opBinary), nil), closeProtocol, "reserved"},
		"an unknown kind":             {frame(true, flagFinal|3, nil), closeProtocol, "unknown kind 3"},
		"an unknown control frame":    {frame(true, flagFinal|11, nil), closeProtocol, "unknown kind 11"},
		"a continuation of nothing":   {frame(true, flagFinal|byte(opContinuation), nil), closeProtocol, "continues no message"},
		"a message within another":    {append(frame(true, byte(opBinary), nil), binaryFrame("x")...), closeProtocol, "in the middle of another"},
		"a long PING":                 {frame(true, flagFinal|byte(opPing), long), closeProtocol, "longer than 125"},
		"a PING in pieces":            {frame(true, byte(opPing), nil), closeProtocol, "fragmented"},
		"half a code":                 {frame(true, flagFinal|byte(opClose), []byte{3}), closeProtocol, "half a code"},
		"a code for logs only":        {frame(true, flagFinal|byte(opClose), []byte{3, 0xee}), closeProtocol, "the code 1006"},
		"a code below all codes":      {frame(true, flagFinal|byte(opClose), []byte{3, 0xe7}), closeProtocol, "the code 999"},
		"a code above all codes":      {frame(true, flagFinal|byte(opClose), []byte{0x13, 0x88}), closeProtocol, "the code 5000"},
		"a length beyond all lengths": {append(huge, 0, 0, 0, 0), closeProtocol, "9223372036854775808"},
	} {
		got, r, err := read(append(binaryFrame("before"), c.in...), func() int { return 3 })
		var v *violation
		if !errors.As(err, &v) || v.code != c.code || !strings.Contains(v.text, c.says) {
			t.Errorf("%s: %v, want code %d and %q", name, err, c.code, c.says)
		}
		if string(got) != "before" {
			t.Errorf("%s: %q was read before", name, got)
		}
		if n, again := r.payload(binaryFrame("after")); n != 0 || again != err {
			t.Errorf("%s: %d bytes and %v are read after it", name, n, again)
		}
	}
	r := reader{client: true}
	if _, err := r.payload(binaryFrame("x")); err == nil || !strings.Contains(err.Error(), "the server masks") {
		t.Errorf("a server that masks: %v", err)
	}
}

func TestACloseFrameEndsWhatIsRead(t *testing.T) {
	for name, c := range map[string]struct {
		payload string
		want    CloseError
		text    string
	}{
		"without a code": {"", CloseError{closeNone, ""}, "the peer closed the WebSocket"},
		"a code":         {"\x03\xe8", CloseError{1000, ""}, "code 1000"},
		"a reason":       {"\x03\xe9tab closed", CloseError{1001, "tab closed"}, `code 1001: "tab closed"`},
	} {
		in := append(binaryFrame("before"), frame(true, flagFinal|byte(opClose), []byte(c.payload))...)
		got, _, err := read(append(in, binaryFrame("after")...), func() int { return 1000 })
		var e *CloseError
		if !errors.As(err, &e) || *e != c.want || !strings.Contains(err.Error(), c.text) || string(got) != "before" {
			t.Errorf("%s: %q and %v, want %q", name, got, err, c.text)
		}
	}
}

func TestMasksOfAllLengths(t *testing.T) {
	for n := range 100 {
		for at := range 4 {
			b, want := make([]byte, n), make([]byte, n)
			for i := range b {
				b[i] = byte(rand.Uint32())
				want[i] = b[i] ^ byte(i+at+1)&3 ^ byte(i+at+1)&3
			}
			mask := []byte{0xa1, 0xb2, 0xc3, 0xd4}
			for i := range want {
				want[i] = b[i] ^ mask[(i+at)%4]
			}
			k := uint32(0)
			for i := range 4 {
				k |= uint32(mask[(i+at)%4]) << (8 * i)
			}
			next := xor(b, k)
			if !bytes.Equal(b, want) || byte(next) != mask[(n+at)%4] {
				t.Fatalf("%d bytes at %d are masked as %x, want %x; the next is %x", n, at, b, want, byte(next))
			}
		}
	}
}

// FuzzReader checks that what is read does not depend on how the input was split, and that
// nothing grows beyond the input.
func FuzzReader(f *testing.F) {
	f.Add(binaryFrame("hello"), uint64(0))
	f.Add(append(frame(true, byte(opBinary), []byte("a")), frame(true, flagFinal|byte(opContinuation), []byte("b"))...), uint64(1))
	f.Add(frame(true, flagFinal|byte(opPing), []byte("p")), uint64(2))
	f.Add(frame(true, flagFinal|byte(opClose), []byte("\x03\xe8bye")), uint64(3))
	f.Fuzz(func(t *testing.T, in []byte, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 0))
		whole, _, err := read(in, func() int { return len(in) })
		pieces, state, again := read(in, func() int { return r.IntN(10) })
		if !bytes.Equal(whole, pieces) || (err == nil) != (again == nil) || err != nil && err.Error() != again.Error() {
			t.Fatalf("whole: %q, %v; in pieces: %q, %v", whole, err, pieces, again)
		}
		if len(whole) > len(in) || cap(state.control) > 4*maxControl {
			t.Fatalf("%d bytes make %d, and %d of a control frame", len(in), len(whole), cap(state.control))
		}
	})
}
