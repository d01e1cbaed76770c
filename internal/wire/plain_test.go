package wire

import (
	"bytes"
	"testing"
)

// Plain frames are what an Encoder makes of such steps, and a Decoder finds the message in them.
func TestPlainFrames(t *testing.T) {
	for _, id := range []uint64{1, 2, 0x7f, 0x80, 0x3fff, 0x4000, 1<<62 - 1} {
		for _, size := range []int{0, 1, 100, 4 << 10, MaxFrame - 20} {
			message := bytes.Repeat([]byte{7}, size)
			b := append(BeginPlain([]byte("before"), id), message...)
			EndPlain(b, len("before"))
			b = b[len("before"):]
			var e Encoder
			step := Step{Stream: id, HasMessage: true, Message: message}
			if want, _ := e.Append(nil, &step, MaxFrame); !bytes.Equal(b, want) {
				t.Errorf("call %d, %d bytes: %d bytes, want %d", id, size, len(b), len(want))
			}
			of, got, n := Plain(append(b, "after"...))
			if of != id || !bytes.Equal(got, message) || n != len(b) {
				t.Errorf("call %d, %d bytes: read call %d, %d bytes, of %d", id, size, of, len(got), n)
			}
			for n := range min(len(b), 10) {
				if _, _, n := Plain(b[:n]); n != 0 {
					t.Errorf("a part of a frame has a length of %d", n)
				}
			}
		}
	}
}

func TestOtherFramesAreNotPlain(t *testing.T) {
	for _, b := range [][]byte{
		nil,
		{2, 0, byte(KindStream | FlagMessage), 0},                // of no call
		{1, 0, byte(KindStream | FlagMessage), 1},                // too short for a call
		{2, 0, byte(KindStream | FlagMessage), 0x80},             // a call that does not end
		{2, 0, byte(KindStream | FlagMessage | FlagEnd), 1},      // more than a message
		{2, 0, byte(KindStream | FlagMessage | FlagMore), 1},     // a part of one
		{2, 0, byte(KindReset), 1},                               //
		{3, 0, byte(KindStream | FlagMessage), 0x80, 0x80, 0x80}, // a call that does not end within the frame
	} {
		if _, _, n := Plain(b); n != 0 {
			t.Errorf("%x is plain, with a length of %d", b, n)
		}
	}
}

// Whatever Plain takes, Next and a Decoder take the same way.
func FuzzPlain(f *testing.F) {
	f.Add([]byte{3, 0, byte(KindStream | FlagMessage), 1, 'x'})
	f.Add([]byte{4, 0, byte(KindStream | FlagMessage), 0x81, 1, 'x'})
	f.Fuzz(func(t *testing.T, b []byte) {
		id, message, n := Plain(b)
		if n == 0 {
			return
		}
		frame, size, err := Next(b)
		if err != nil || size != n || frame.Stream != id {
			t.Fatalf("%x: call %d in %d bytes, and %+v in %d, %v", b, id, n, frame, size, err)
		}
		var d Decoder
		got, err := d.Stream(frame, nil, false)
		if err != nil || !got.Begins || got.More || got.Compressed || got.End != nil || !bytes.Equal(got.Data, message) {
			t.Fatalf("%x: %q, and %+v, %v", b, message, got, err)
		}
	})
}
