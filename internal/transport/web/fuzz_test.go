package web

import (
	"bytes"
	"encoding/base64"
	"io"
	"net"
	"regexp"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/sniff"
)

// FuzzBody receives an arbitrary body in arbitrary pieces. Receiving ends, with the same
// messages however the body is cut. A body can be wrong in two ways, of which the reader and
// the receiver find one each.
func FuzzBody(f *testing.F) {
	for _, s := range []string{"", "\x00\x00\x00\x00\x02hi", "\x00\xff\xff\xff\xffhi", "\x01\x00\x00\x00\x02hi", "\x02\x00\x00\x00\x00", "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01a\x00"} {
		f.Add([]byte(s), byte(grpcWeb))
		f.Add([]byte(s), byte(bare))
		f.Add([]byte(base64.StdEncoding.EncodeToString([]byte(s))), byte(grpcText))
	}
	f.Fuzz(func(t *testing.T, body []byte, k byte) {
		whole, why := receiveAll(t, bytes.NewReader(body), kind(k%4))
		bytewise, why2 := receiveAll(t, iotest.OneByteReader(bytes.NewReader(body)), kind(k%4))
		if whole != bytewise || (why == theEnd) != (why2 == theEnd) {
			t.Errorf("at once %q, %s; in pieces %q, %s", whole, why, bytewise, why2)
		}
	})
}

const theEnd = "the end"

// receiveAll receives all messages of a body. It returns them, joined, and why no more came.
func receiveAll(t *testing.T, body io.Reader, k kind) (all, why string) {
	_, conn := net.Pipe()
	st := newStream(newConn(serverOf(t, windows(64)), sniff.Handover{Conn: conn}).session, &request{kind: k, size: -1})
	if k == grpcText {
		body = &textReader{body: body}
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		st.read(body, make([]byte, firstRead))
	}()
	defer func() {
		st.Abort(io.ErrClosedPipe)
		<-read
	}()
	for range 10_000 {
		var got []byte
		f := &link.Frame{Sink: message.Sink{Dst: &got, Codec: raw{}, Limit: 1000}}
		err := st.Recv(f)
		if f.Got {
			all += string(got) + "|"
		}
		if err != nil {
			if _, refused := err.(*message.RecvError); refused {
				continue
			}
			return all, err.Error()
		}
		if f.EndSend {
			return all, theEnd
		}
	}
	t.Fatal("receiving does not end")
	return "", ""
}

// FuzzLengths looks for Content-Length in arbitrary bytes that are read in arbitrary pieces.
func FuzzLengths(f *testing.F) {
	f.Add([]byte("POST / HTTP/1.1\r\ncontent-LENGTH: 2\r\n\r\n{}"), byte(1))
	f.Add([]byte("Content-Length: 1\nContent-Lengt\nX: Content-Length: 2\n"), byte(7))
	f.Add([]byte("\nContent-\nContent-Length"), byte(3))
	line := regexp.MustCompile(`(?mi)^content-length`)
	f.Fuzz(func(t *testing.T, b []byte, piece byte) {
		var h headerWatch
		for rest := range slices.Chunk(b, int(piece)+1) {
			h.add(rest)
		}
		if want := line.Match(b); h.hasLength != want {
			t.Errorf("%q: found: %t, want %t", b, h.hasLength, want)
		}
	})
}
