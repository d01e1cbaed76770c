package web

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"mime"
	"strings"
)

// A kind is how a request and its answer are framed.
type kind int

const (
	bare     kind = iota // Connect's unary calls: a body is a message
	connect              // Connect's streams: messages in envelopes
	grpcWeb              // gRPC-Web: messages in envelopes
	grpcText             // the same, as base64
)

// enveloped reports whether messages are in envelopes.
func (k kind) enveloped() bool { return k != bare }

// headers returns the names of the headers for the compressor of messages and for those that the
// sender accepts.
func (k kind) headers() (encoding, accept string) {
	switch k {
	case bare:
		return "Content-Encoding", "Accept-Encoding"
	case connect:
		return "Connect-Content-Encoding", "Connect-Accept-Encoding"
	}
	return "Grpc-Encoding", "Grpc-Accept-Encoding"
}

// prefix returns the length of the head of a message, in bytes.
func (k kind) prefix() int {
	if k.enveloped() {
		return envelope
	}
	return 0
}

// putPrefix completes b, which begins with room for the head of its message.
func putPrefix(b []byte, prefix int, packed bool) []byte {
	if prefix > 0 {
		if packed {
			b[0] |= flagCompressed
		}
		binary.BigEndian.PutUint32(b[1:], uint32(len(b)-prefix))
	}
	return b
}

// kindOf returns the kind and the content-subtype of a media type, such as
// "application/connect+json". ok is false if it is none of ours.
func kindOf(mediaType string) (k kind, subtype string, ok bool) {
	sub, ok := strings.CutPrefix(mediaType, "application/")
	if !ok {
		return 0, "", false
	}
	for prefix, k := range map[string]kind{"grpc-web": grpcWeb, "grpc-web-text": grpcText} {
		if sub == prefix {
			return k, "proto", true
		}
		if name, ok := strings.CutPrefix(sub, prefix+"+"); ok {
			return k, name, true
		}
	}
	if name, ok := strings.CutPrefix(sub, "connect+"); ok {
		return connect, name, true
	}
	return bare, sub, sub != "grpc" && !strings.HasPrefix(sub, "grpc+")
}

// mediaTypeOf returns the media type of a content-type, in lower case. It understands one
// parameter, the charset, which must be UTF-8.
func mediaTypeOf(contentType string) (string, error) {
	if strings.IndexByte(contentType, ';') < 0 {
		return strings.ToLower(strings.TrimSpace(contentType)), nil
	}
	t, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		return "", err
	}
	if c, ok := params["charset"]; ok && !strings.EqualFold(c, "utf-8") {
		return "", fmt.Errorf("the charset is %q; send utf-8", c)
	}
	return t, nil
}

// A textReader decodes the base64 of gRPC-Web's text form. The text may contain padding before its
// end, because a client can encode each message by itself.
type textReader struct {
	body  io.Reader
	text  [4096]byte
	held  int    // how many characters at the start of text form an incomplete group
	plain []byte // decoded, not read
	space [4096]byte
	err   error // of body
}

// Read implements [io.Reader]. It reads from the body at most once, and returns even without a
// complete group: the stream must learn that something has arrived.
func (r *textReader) Read(p []byte) (int, error) {
	if len(r.plain) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		n, err := r.body.Read(r.text[r.held:])
		n += r.held
		whole := n &^ 3
		if err == io.EOF && whole < n { // the last group may lack its padding
			n += copy(r.text[n:], "===="[:4-n&3])
			whole = n
		}
		if r.plain, r.err = decodeGroups(r.space[:0], r.text[:whole]); r.err == nil {
			r.err = err
		}
		r.held = copy(r.text[:], r.text[whole:n])
	}
	n := copy(p, r.plain)
	r.plain = r.plain[n:]
	if len(r.plain) == 0 && r.err != nil {
		return n, r.err
	}
	return n, nil
}

var errNotBase64 = errors.New("it is not base64")

// decodeGroups decodes the groups of four characters in text, and appends the result to b. It
// rejects line breaks: package base64 would skip them, and the groups would shift.
func decodeGroups(b, text []byte) ([]byte, error) {
	wrong := bytes.IndexAny(text, "\r\n")
	if wrong >= 0 {
		text = text[:wrong&^3]
	}
	for len(text) > 0 {
		end := len(text)
		if i := bytes.IndexByte(text, '='); i >= 0 {
			end = i&^3 + 4
		}
		var err error
		if b, err = base64.StdEncoding.AppendDecode(b, text[:end]); err != nil {
			return b, errNotBase64
		}
		text = text[end:]
	}
	if wrong >= 0 {
		return b, errNotBase64
	}
	return b, nil
}
