package link

import (
	"bytes"
	"fmt"

	"google.golang.org/grpc/mem"
)

// A Codec turns messages into bytes, bytes into messages, and messages into
// messages. Codecs are safe for concurrent use, and two codecs are the same
// codec exactly if they are equal with ==, which never panics.
type Codec interface {
	// Name is the content-subtype the codec is known by.
	Name() string

	// Size returns the size of v's encoding in bytes. A nil v is an empty
	// message.
	Size(v any) (int, error)

	// Append appends v's encoding to b. It fails as marshalling fails: on a
	// required field that is not set, on invalid UTF-8, on a value of a type
	// that the codec does not encode. A nil v is an empty message.
	Append(b []byte, v any) ([]byte, error)

	// Decode resets v and decodes data into it. The caller keeps its
	// reference to data.
	Decode(data mem.BufferSlice, v any) error

	// Copy makes dst what Decode of Append(src) would have made it, sharing
	// no memory with src that either side may write. dst must not be a
	// message within src, but may be src itself.
	//
	// bound is no less than the size of src's encoding. It is a by-product of
	// copying; a caller that needs the size itself asks Size.
	//
	// If ok is false nothing was copied and dst is untouched: either err is
	// the error that Append(src) makes, or it is nil and the copy has to go
	// through bytes, if Append and Decode let it. Copy runs no code of a user's
	// to find out.
	Copy(dst, src any) (bound int, ok bool, err error)

	// Copies reports whether Copy can copy v by itself, running no code of a
	// user's. It may still find, and say, that one message has to go through
	// bytes.
	Copies(v any) bool

	// New returns an empty message of src's Go type for Copy to fill and Move
	// to empty, or nil if Move does not support the type.
	New(src any) any

	// Move makes dst what src is without copying what src refers to, and
	// leaves src empty. It reports false, having done nothing, unless dst and
	// src have one Go type, of which New makes messages.
	Move(dst, src any) bool
}

// A Message is one message in one of two forms: live, a Go value and the codec
// that its sender would encode it with, or encoded.
type Message struct {
	value    any   // the message; a mem.BufferSlice or a *Prepared where it is encoded
	codec    Codec // nil where it is encoded
	bound    int
	captured bool // value is the transport's own, made by Codec.New
}

// Live returns the message v, to be encoded by c where bytes are needed. The
// value stays the sender's, and must not change until the message was
// captured.
func Live(v any, c Codec) Message { return Message{value: v, codec: c} }

// Encoded returns a message that arrived as bytes. The message takes over the
// caller's reference to data.
func Encoded(data mem.BufferSlice) Message { return Message{value: data, bound: data.Len()} }

func (m *Message) encoded() bool { return m.codec == nil }

// data returns the bytes of an encoded message.
func (m *Message) data() mem.BufferSlice {
	if p, ok := m.value.(*Prepared); ok {
		return mem.BufferSlice{mem.SliceBuffer(p.plain)}
	}
	data, _ := m.value.(mem.BufferSlice)
	return data
}

// Bound returns an upper bound of the encoded size, in bytes, of a message
// that was captured or is encoded.
func (m *Message) Bound() int { return m.bound }

// Append appends the encoding of m to b: the sender's bytes. The error is a
// *SendError.
func (m *Message) Append(b []byte) ([]byte, error) {
	if m.encoded() {
		for _, d := range m.data() {
			b = append(b, d.ReadOnlyData()...)
		}
		return b, nil
	}
	b, err := m.codec.Append(b, m.value)
	if err != nil {
		return nil, &SendError{err}
	}
	return b, nil
}

// Encode returns m in bytes. The error is a *SendError.
func (m *Message) Encode() (Message, error) {
	if m.encoded() {
		return *m, nil
	}
	b, err := m.Append(nil)
	if err != nil {
		return Message{}, err
	}
	return Encoded(mem.BufferSlice{mem.SliceBuffer(b)}), nil
}

// encode is Encode, of a message on the heap.
func (m *Message) encode() (*Message, error) {
	b, err := m.Encode()
	if err != nil {
		return nil, err
	}
	return &b, nil
}

// CopiesTo reports whether m can go to to without bytes, and without running
// code of a user's: on whichever goroutine, then.
func (m *Message) CopiesTo(to *Sink) bool {
	return !m.encoded() && m.codec == to.Codec && m.codec.Copies(m.value)
}

// Copies reports whether the codec of m copies it by itself.
func (m *Message) Copies() bool { return !m.encoded() && m.codec.Copies(m.value) }

// Size returns the size of m's encoding in bytes. The error is a *SendError.
func (m *Message) Size() (int, error) {
	if m.encoded() {
		return m.bound, nil
	}
	n, err := m.codec.Size(m.value)
	if err != nil {
		return 0, &SendError{err}
	}
	return n, nil
}

// Capture makes into hold what m holds, independently of the sender's value: as
// a copy, or as bytes. A copy is made in the message that into has from an
// earlier Capture, if DecodeInto has taken that and it has the same type. The
// error is a *SendError, and leaves into fit for another Capture.
func (m *Message) Capture(into *Message) error {
	if m.value != nil && !m.encoded() {
		if into.captured && into.codec == m.codec {
			bound, ok, err := m.codec.Copy(into.value, m.value)
			if err != nil {
				return &SendError{err}
			}
			if ok {
				into.bound = bound
				return nil
			}
		}
		if shell := m.codec.New(m.value); shell != nil {
			bound, ok, err := m.codec.Copy(shell, m.value)
			if err != nil {
				return &SendError{err}
			}
			if ok {
				*into = Message{value: shell, codec: m.codec, bound: bound, captured: true}
				return nil
			}
		}
	}
	bytes, err := m.Encode()
	if err == nil {
		*into = bytes
	}
	return err
}

// DecodeInto puts m where to says. It returns a *SendError when m cannot be
// encoded, which is the sender's affair, and a *RecvError when it cannot be
// decoded or is larger than to.Limit, which is the receiver's. A captured
// message is left empty, for another Capture.
func (m *Message) DecodeInto(to *Sink) error {
	if p, ok := m.value.(*Prepared); ok && m.encoded() {
		return DecodeBytes(p.plain, to) // which others may receive, too
	}
	if m.encoded() {
		return m.decode(m.data(), to)
	}
	if ok, err := m.CopyInto(to); ok || err != nil {
		return err
	}
	b, err := m.Append(nil)
	if err != nil {
		return err
	}
	return m.decode(mem.BufferSlice{mem.SliceBuffer(b)}, to)
}

// CopyInto is DecodeInto for a message that goes there without bytes. Where ok is false
// and err nil nothing was done, and to.Dst is as it was: it has to go through bytes.
func (m *Message) CopyInto(to *Sink) (ok bool, err error) {
	if m.encoded() || m.codec != to.Codec {
		return false, nil
	}
	if m.captured {
		if err := m.checkLimit(to); err != nil {
			return false, err
		}
		if m.codec.Move(to.Dst, m.value) {
			return true, nil
		}
	}
	bound, ok, err := m.codec.Copy(to.Dst, m.value)
	if err != nil {
		return false, &SendError{err}
	}
	if !ok {
		return false, nil
	}
	m.bound = bound
	return true, m.checkLimit(to)
}

// DecodeBytes puts the message whose encoding is b where to says, and keeps
// nothing of b. The error is a *RecvError.
func DecodeBytes(b []byte, to *Sink) error {
	d, ok := to.Codec.(interface {
		DecodeBytes(b []byte, v any) error
	})
	if !ok {
		m := Encoded(mem.BufferSlice{mem.SliceBuffer(bytes.Clone(b))}) // a codec may keep what it decodes
		return m.DecodeInto(to)
	}
	if len(b) > to.Limit {
		return &RecvError{Size: len(b), Limit: to.Limit}
	}
	if err := d.DecodeBytes(b, to.Dst); err != nil {
		return &RecvError{Err: err}
	}
	return nil
}

func (m *Message) decode(data mem.BufferSlice, to *Sink) error {
	if n := data.Len(); n > to.Limit {
		return &RecvError{Size: n, Limit: to.Limit}
	}
	if err := to.Codec.Decode(data, to.Dst); err != nil {
		return &RecvError{Err: err}
	}
	return nil
}

// checkLimit compares the bound with the limit, and asks for the true size
// only when the bound is over it.
func (m *Message) checkLimit(to *Sink) error {
	if m.bound <= to.Limit {
		return nil
	}
	n, err := m.Size()
	if err != nil {
		return err
	}
	m.bound = n
	if n > to.Limit {
		return &RecvError{Size: n, Limit: to.Limit}
	}
	return nil
}

// Free releases the bytes of an encoded message. It is called exactly once by
// whoever received it, after DecodeInto; it does nothing for live messages.
func (m *Message) Free() {
	if m.encoded() {
		m.data().Free()
		m.value = nil
	}
}

// A SendError says that a message could not be encoded: nothing was sent.
type SendError struct{ Err error }

func (e *SendError) Error() string { return fmt.Sprintf("cannot encode the message: %v", e.Err) }

func (e *SendError) Unwrap() error { return e.Err }

// A RecvError says that a message that arrived could not be taken: it is
// larger than the receiver's limit, or Err says why it cannot be decoded.
type RecvError struct {
	Err         error
	Size, Limit int  // when Err is nil
	Inflated    bool // it is too large once decompressed, of Size bytes at least
}

func (e *RecvError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("message of %d bytes is larger than the limit of %d", e.Size, e.Limit)
	}
	return fmt.Sprintf("cannot decode the message: %v", e.Err)
}

func (e *RecvError) Unwrap() error { return e.Err }
