package hostile

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall/internal/link"
)

// A kind is the kind of a frame. It determines which of the frame's fields are used.
type kind byte

const (
	kindOpen    kind = 1 + iota // open, timeout
	kindHeader                  // md
	kindData                    // data, flags: a fragment of a message
	kindEndSend                 // the caller sends no more
	kindEnd                     // status, md: the callee's last frame
	kindReset                   // code, text: the stream was aborted
	kindCredit                  // n: bytes of credit that the receiver returns
	kindDrain                   // of the session: it accepts no new calls
	kindBye                     // of the session, which ends: n is the last stream that the sender has seen
)

// A flag qualifies a fragment.
type flag byte

const (
	flagLast    flag = 1 << iota // the message ends here
	flagEndSend                  // and is the caller's last
	flags
)

// A code says why a stream was aborted.
type code byte

const (
	codeOther code = iota // text says why
	codeCanceled
	codeDeadline
	codeUnprocessed // the acceptor refused the stream; text says why
	codeBroken      // the stream broke a rule; text says which
	numCodes
)

// A frame is one frame of the protocol, decoded. Encoding and decoding are pure functions.
type frame struct {
	kind    kind
	id      uint64 // of the stream; zero for frames of the session
	open    link.CallHeader
	timeout time.Duration // zero for none
	md      metadata.MD
	data    []byte
	flags   flag
	status  *status.Status
	code    code
	text    string
	n       uint64
}

// maxFrame bounds the length of a frame in bytes, and so what a reader buffers. Metadata
// must fit in one frame; messages are split.
const maxFrame = 16 << 20

// appendFrame appends f, after its length.
func appendFrame(b []byte, f *frame) []byte {
	body := appendBody(nil, f)
	b = binary.AppendUvarint(b, uint64(len(body)))
	return append(b, body...)
}

func appendBody(b []byte, f *frame) []byte {
	b = append(b, byte(f.kind))
	b = binary.AppendUvarint(b, f.id)
	switch f.kind {
	case kindOpen:
		o := &f.open
		for _, s := range []string{o.Method, o.Authority, o.UserAgent, o.ContentSubtype, o.Encoding, o.Accept} {
			b = appendString(b, s)
		}
		b = binary.AppendUvarint(b, uint64(f.timeout))
		b = appendMetadata(b, o.Metadata)
	case kindHeader:
		b = appendMetadata(b, f.md)
	case kindData:
		b = append(b, byte(f.flags))
		b = append(b, f.data...)
	case kindEnd:
		b = appendMetadata(b, f.md)
		b = appendStatus(b, f.status)
	case kindReset:
		b = append(b, byte(f.code))
		b = appendString(b, f.text)
	case kindCredit, kindBye:
		b = binary.AppendUvarint(b, f.n)
	}
	return b
}

func appendString(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// appendMetadata appends md in the order of its keys, so that equal frames
// have equal bytes.
func appendMetadata(b []byte, md metadata.MD) []byte {
	keys := make([]string, 0, len(md))
	for k := range md {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	b = binary.AppendUvarint(b, uint64(len(keys)))
	for _, k := range keys {
		b = appendString(b, k)
		b = binary.AppendUvarint(b, uint64(len(md[k])))
		for _, v := range md[k] {
			b = appendString(b, v)
		}
	}
	return b
}

// appendStatus appends st at the end of a frame; OK is empty.
func appendStatus(b []byte, st *status.Status) []byte {
	if st == nil {
		return b
	}
	opts := proto.MarshalOptions{Deterministic: true}
	all, err := opts.MarshalAppend(b, st.Proto())
	if err != nil { // protobuf rejects invalid UTF-8 in the message
		all, _ = opts.MarshalAppend(b, status.New(st.Code(), strings.ToValidUTF8(st.Message(), "\uFFFD")).Proto())
	}
	return all
}

// openFrame returns the frame that opens a stream for o, as of now.
func openFrame(o *link.CallHeader, now time.Time) frame {
	f := frame{kind: kindOpen, open: *o}
	if !o.Deadline.IsZero() {
		f.timeout = max(o.Deadline.Sub(now), 1)
	}
	return f
}

// opened returns the header that the callee gets for an open frame that arrives at now.
func (f *frame) opened(now time.Time) *link.CallHeader {
	o := f.open
	if f.timeout != 0 {
		o.Deadline = now.Add(f.timeout)
	}
	return &o
}

// resetFrame returns the frame that tells a peer why a stream was aborted.
func resetFrame(reason error) frame {
	f := frame{kind: kindReset, text: reason.Error()}
	switch {
	case errors.Is(reason, link.ErrUnprocessed):
		f.code = codeUnprocessed
	case errors.Is(reason, link.ErrBroken):
		f.code = codeBroken
	case errors.Is(reason, context.Canceled):
		f.code = codeCanceled
	case errors.Is(reason, context.DeadlineExceeded):
		f.code = codeDeadline
	}
	return f
}

// reason returns the error that resetFrame was called with, as far as the frame carries it.
func (f *frame) reason() error {
	switch f.code {
	case codeCanceled:
		return context.Canceled
	case codeDeadline:
		return context.DeadlineExceeded
	case codeUnprocessed:
		return link.Unprocessed{Err: errors.New(f.text)}
	case codeBroken:
		return broken{errors.New(f.text)}
	}
	return errors.New(f.text)
}

// broken says that the call broke the rules.
type broken struct{ error }

func (b broken) Unwrap() []error { return []error{b.error, link.ErrBroken} }
