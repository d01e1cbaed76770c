// Package message has messages on their way: as Go values with their codecs, or encoded. It says
// what a [Codec] does. Package codec has the codecs.
package message

import (
	"fmt"
	"reflect"

	"google.golang.org/grpc/mem"
)

// A Codec encodes, decodes and copies messages. Codecs are safe for concurrent use. Two codecs are
// the same codec if and only if they are equal with ==, which must not panic.
//
// The interface includes abilities of only some codecs, so that a codec that embeds another keeps
// them.
type Codec interface {
	// Name returns the codec's content-subtype.
	Name() string

	// Size returns the size of v's encoding in bytes. A nil v is an empty message.
	Size(v any) (int, error)

	// Append appends v's encoding to b. It fails as marshalling does: if a
	// required field is not set, on invalid UTF-8, or if the codec does not
	// support v's type. A nil v is an empty message.
	Append(b []byte, v any) ([]byte, error)

	// AppendWithin is Append for the case that v's encoding fits the free capacity of b and the
	// codec need not compute the size of the encoding first, which takes a good part of the time
	// of encoding. In any other case ok is false, and nothing was appended.
	AppendWithin(b []byte, v any) (_ []byte, ok bool)

	// Sized returns v as a message whose Bound is the size of its encoding, so that the memory for
	// it can be allocated in one piece. The result is an [Encoded] message, whose bytes may be v's,
	// or a [Measured] one. If computing the size could cost as much as encoding v, it is a [Live]
	// message instead. The caller appends the message at most once, before v changes, and frees it.
	Sized(v any) (Message, error)

	// Immutable reports whether the message that Sized returns is encoded and does not change
	// with v, so that it can be kept without a copy.
	Immutable() bool

	// Decode resets v and decodes data into it. kept reports whether v refers to data.Bytes; then
	// their memory must not be reused.
	Decode(data Data, v any) (kept bool, err error)

	// KeepsReferences reports whether Decode may make v keep references to data.Buffers. Only
	// then does the receiver count the references to a message that has arrived.
	KeepsReferences() bool

	// Copy gives dst the content that it would have after decoding the result of Append(src).
	// Afterwards dst and src share no memory that either side may write. dst must not be a message
	// within src, but may be src itself.
	//
	// bound is an upper bound of the size of src's encoding in bytes, which copying finds on its
	// way; Size returns the exact size.
	//
	// If ok is false, nothing was copied and dst is unchanged. Then err is the error that
	// Append(src) would return, or nil if the message must be copied through bytes. Copy finds
	// that out without running user code.
	Copy(dst, src any) (bound int, ok bool, err error)

	// Copies reports whether Copy can copy v without running user code. Copy may still report
	// that this one message must be copied through bytes.
	Copies(v any) bool

	// New returns an empty message of src's Go type, for Copy to fill and Move
	// to empty. It returns nil if Move does not support the type.
	New(src any) any

	// Move moves src's content to dst without copying what src refers to, and
	// leaves src empty. It does nothing and returns false if dst and src have
	// different Go types, or a type that New does not support.
	Move(dst, src any) bool
}

// Data is an encoded message that a codec decodes. The encoding is in Buffers or, if Buffers is
// nil, in Bytes.
type Data struct {
	Bytes []byte
	Stay  bool // nobody changes Bytes any more, so that the decoded message may refer to them

	// Buffers belong to the caller. The codec takes references to those that it keeps.
	Buffers mem.BufferSlice
}

// Copy returns a copy of d in one piece.
func (d Data) Copy() []byte {
	if d.Buffers != nil {
		return d.Buffers.Materialize()
	}
	return append([]byte{}, d.Bytes...)
}

// A Message is one message: live (a Go value and its sender's codec), measured, or encoded.
type Message struct {
	value    any   // if codec is nil: an Appender, a mem.BufferSlice, a plainBytes or a *Prepared
	codec    Codec // of a live message
	bound    int
	captured bool // value belongs to the transport and was made by Codec.New
}

// Live returns the live message v, which c encodes if bytes are needed. v still belongs to the
// sender, and must not change until the message is captured.
func Live(v any, c Codec) Message { return Message{value: v, codec: c} }

// Measured returns a message of n bytes that was measured. a appends it: see [Codec.Sized].
func Measured(a Appender, n int) Message { return Message{value: a, bound: n} }

// An Appender appends a measured message. It uses the results of computing the size.
type Appender interface {
	// Append appends the encoding. It is called at most once, before the message changes.
	Append(b []byte) ([]byte, error)
}

// Encoded returns an encoded message. The message takes over the caller's reference to data.
func Encoded(data mem.BufferSlice) Message { return Message{value: data, bound: data.Len()} }

// EncodedBytes returns an encoded message that is b, which must not change.
func EncodedBytes(b []byte) Message { return Message{value: plainBytes(b), bound: len(b)} }

// plainBytes is the value of an encoded message that needs no reference to its bytes.
type plainBytes []byte

func (m *Message) live() bool { return m.codec != nil }

// Data returns the bytes of an encoded message. The caller must take its own reference
// to keep them. It returns nil for a measured message.
func (m *Message) Data() mem.BufferSlice {
	switch v := m.value.(type) {
	case *Prepared:
		return mem.BufferSlice{mem.SliceBuffer(v.plain)}
	case plainBytes:
		return mem.BufferSlice{mem.SliceBuffer(v)}
	case mem.BufferSlice:
		return v
	}
	return nil
}

// Bound returns an upper bound of m's encoded size in bytes. It is exact if m is not live. It
// returns 0 for a live message that was not captured.
func (m *Message) Bound() int { return m.bound }

// Append appends m's encoding to b. The error is a *SendError.
func (m *Message) Append(b []byte) ([]byte, error) {
	var err error
	if m.live() {
		b, err = m.codec.Append(b, m.value)
	} else {
		switch v := m.value.(type) {
		case plainBytes:
			b = append(b, v...)
		case *Prepared:
			b = append(b, v.plain...)
		case mem.BufferSlice:
			for _, d := range v {
				b = append(b, d.ReadOnlyData()...)
			}
		case Appender:
			b, err = v.Append(b)
		}
	}
	if err != nil {
		return nil, &SendError{err}
	}
	return b, nil
}

// AppendWithin is Append for the case that m's encoding fits the free capacity of b and the size
// of the encoding need not be computed first. Otherwise ok is false, and nothing was appended.
func (m *Message) AppendWithin(b []byte) (_ []byte, ok bool) {
	if m.live() {
		return m.codec.AppendWithin(b, m.value)
	}
	if m.bound > cap(b)-len(b) {
		return b, false
	}
	b, err := m.Append(b)
	return b, err == nil
}

// Sized returns m, or if m is live the result of its codec's Sized. The caller appends the result
// at most once, before m's value changes, and frees it. The error is a *SendError.
func (m *Message) Sized() (Message, error) {
	if !m.live() {
		return m.held(), nil
	}
	sized, err := m.codec.Sized(m.value)
	if err != nil {
		return Message{}, &SendError{err}
	}
	return sized, nil
}

// Freeze returns m as an encoded message that does not change with m's value. The caller frees
// it. The error is a *SendError.
func (m *Message) Freeze() (Message, error) {
	if m.live() && m.codec.Immutable() {
		return m.Sized()
	}
	if _, measured := m.value.(Appender); !measured && !m.live() {
		return m.held(), nil
	}
	b, err := m.Append(nil)
	if err != nil {
		return Message{}, err
	}
	return Encoded(mem.BufferSlice{mem.SliceBuffer(b)}), nil
}

// held takes another reference to m's bytes, and returns m, which must not be live.
func (m *Message) held() Message {
	if data, ok := m.value.(mem.BufferSlice); ok {
		data.Ref()
	}
	return *m
}

// CopiesTo reports whether m can be copied into to.Dst without encoding it and without running
// user code, so that any goroutine may do it.
func (m *Message) CopiesTo(to *Sink) bool { return m.Copies() && m.codec == to.Codec }

// Copies reports whether m's codec can copy it without running user code.
func (m *Message) Copies() bool { return m.live() && m.codec.Copies(m.value) }

// Size returns the size of m's encoding in bytes. The error is a *SendError.
func (m *Message) Size() (int, error) {
	if !m.live() {
		return m.bound, nil
	}
	n, err := m.codec.Size(m.value)
	if err != nil {
		return 0, &SendError{err}
	}
	return n, nil
}

// Capture sets *into to a copy of m, or to m's bytes, so that the sender may change m's value. If
// *into holds a message of the same type from an earlier Capture, and DecodeInto has emptied that
// message, Capture reuses it. The error is a *SendError. After an error, *into may be used for
// another Capture.
func (m *Message) Capture(into *Message) error {
	if m.value != nil && m.live() {
		shell := into.value
		if !into.captured || into.codec != m.codec || reflect.TypeOf(shell) != reflect.TypeOf(m.value) {
			shell = m.codec.New(m.value)
		}
		if shell != nil {
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
	bytes, err := m.Freeze()
	if err == nil {
		*into = bytes
	}
	return err
}

// DecodeInto puts m into to.Dst. It returns a *SendError, which the sender must see, if m cannot
// be encoded. It returns a *RecvError, which the receiver must see, if m cannot be decoded or is
// larger than to.Limit. A captured message is left empty, for another Capture.
func (m *Message) DecodeInto(to *Sink) error {
	if m.live() {
		if ok, err := m.CopyInto(to); ok || err != nil {
			return err
		}
		frozen, err := m.Freeze()
		if err != nil {
			return err
		}
		err = frozen.DecodeInto(to)
		frozen.Free() // not deferred: a codec that panics may have kept the bytes
		return err
	}
	var data Data
	if p, ok := m.value.(*Prepared); ok {
		data.Bytes = p.plain // other streams receive them as well
	} else {
		data.Buffers = m.Data()
	}
	_, err := to.Decode(data)
	return err
}

// CopyInto is DecodeInto without encoding m. If ok is false and err is nil, m must be copied
// through bytes: its codec requires that, or m seems too large and only the compressed size can
// tell.
func (m *Message) CopyInto(to *Sink) (ok bool, err error) {
	if !m.live() || m.codec != to.Codec {
		return false, nil
	}
	if m.captured {
		if err := m.checkLimit(to); err != nil {
			return false, countedBefore(err, to)
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
	if err := m.checkLimit(to); err != nil {
		err = countedBefore(err, to)
		return err != nil, err
	}
	return true, nil
}

// countedBefore returns err, which says that a message is too large, or nil if only the
// compressed size can tell.
func countedBefore(err error, to *Sink) error {
	if _, large := err.(*RecvError); large && Compressor(to.Compressor) != "" {
		return nil
	}
	return err
}

// Decode decodes data into to.Dst. kept reports whether the message may refer to data.Bytes. The
// error is a *RecvError.
func (to *Sink) Decode(data Data) (kept bool, err error) {
	n := len(data.Bytes) + data.Buffers.Len()
	if n > to.Limit {
		return false, tooLarge(data, n, to)
	}
	if kept, err = to.Codec.Decode(data, to.Dst); err != nil {
		return kept, &RecvError{Err: err}
	}
	to.Size = n
	return kept, nil
}

// DecodeBytes is Decode for b, which still belongs to the caller. If b is compressed, DecodeBytes
// first decompresses it with the compressor registered as name.
func (to *Sink) DecodeBytes(b []byte, compressed bool, name string) error {
	if !compressed {
		_, err := to.Decode(Data{Bytes: b})
		return err
	}
	plain, err := Decompress(b, name, to.Limit)
	if err != nil {
		return err
	}
	defer plain.Free()
	_, err = to.Decode(Data{Buffers: plain})
	return err
}

// tooLarge returns the error for a message of n bytes, more than to.Limit. As in gRPC the
// compressed size is checked first.
func tooLarge(data Data, n int, to *Sink) error {
	if name := Compressor(to.Compressor); name != "" {
		if packed, err := Compress(data.Copy(), name); err == nil {
			if len(packed) <= to.Limit {
				return &RecvError{Size: n, Limit: to.Limit, Inflated: true}
			}
			n = len(packed)
		}
	}
	return &RecvError{Size: n, Limit: to.Limit}
}

// checkLimit checks that m is not larger than to.Limit. It computes the exact size only
// if the bound exceeds the limit.
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

// Free releases the bytes of an encoded message. The receiver calls it exactly once,
// after DecodeInto. It does nothing for live messages.
func (m *Message) Free() {
	if !m.live() {
		if data, ok := m.value.(mem.BufferSlice); ok {
			data.Free()
		}
		m.value = nil
	}
}

// A SendError says that a message could not be encoded. Nothing was sent.
type SendError struct{ Err error }

func (e *SendError) Error() string { return fmt.Sprintf("cannot encode the message: %v", e.Err) }
func (e *SendError) Unwrap() error { return e.Err }

// A RecvError says that a message arrived but cannot be received: it is larger than
// the receiver's limit, or cannot be decoded because of Err.
type RecvError struct {
	Err         error
	Size, Limit int  // in bytes, if Err is nil
	Inflated    bool // the decompressed message is too large; Size is a lower bound
}

func (e *RecvError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("message of %d bytes is larger than the limit of %d", e.Size, e.Limit)
	}
	return fmt.Sprintf("cannot decode the message: %v", e.Err)
}

func (e *RecvError) Unwrap() error { return e.Err }

// A Sink is the destination of a received message.
type Sink struct {
	Dst   any   // nil: no message is wanted
	Codec Codec // how the receiver decodes
	Limit int   // the largest message the receiver accepts, in bytes

	// Compressor is the compressor of the call, "" or "identity" for none. In process nothing is
	// compressed, but the error for a message that is too large depends on it.
	Compressor string

	Size int // the result: the size of the message's encoding, in bytes; 0 without a message
}
