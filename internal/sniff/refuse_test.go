package sniff

import (
	"bufio"
	"io"
	"strings"
	"testing"
)

// A reads counts calls of Read.
type reads struct {
	io.Reader
	n int
}

func (r *reads) Read(b []byte) (int, error) {
	r.n++
	return r.Reader.Read(b)
}

// TestSmallFramesOfAnHTTP2ClientTakeFewReads checks that a frame of 9 bytes does not cost a
// system call.
func TestSmallFramesOfAnHTTP2ClientTakeFewReads(t *testing.T) {
	const frames, call = 100_000, 5
	empty := strings.Repeat(string(frame(nil, frameSettings, 0, 0, "")), frames)
	large := string(frame(nil, frameSettings, 0, 0, strings.Repeat("s", 16<<10)))
	r := &reads{Reader: strings.NewReader(empty + large + string(frame(nil, frameHeaders, 0, call, "")))}
	if got := nextCall(bufio.NewReader(r)); got != call {
		t.Errorf("the next call is %d, want %d", got, call)
	}
	if r.n > frames/100 {
		t.Errorf("%d frames take %d reads", frames, r.n)
	}
	if got := nextCall(bufio.NewReader(strings.NewReader(empty + large[:100]))); got != 0 {
		t.Errorf("the next call is %d, want none", got)
	}
}
