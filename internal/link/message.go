package link

import (
	"fmt"

	"google.golang.org/grpc/mem"

	"github.com/nearcall/nearcall/internal/largecopy"
)

// A Codec encodes, decodes and copies messages. Codecs are safe for concurrent use.
// Two codecs are the same codec if and only if they are equal with ==, which must
// not panic.
type Codec interface {
	// Name returns the codec's content-subtype.
	Name() string

	// Size returns the size of v's encoding in bytes. A nil v is an empty
	// message.
	Size(v any) (int, error)

	// Append appends v's encoding to b. It fails as marshalling does: if a
	// required field is not set, on invalid UTF-8, or if the codec does not
	// support v's type. A nil v is an empty message.
	Append(b []byte, v any) ([]byte, error)

	// Decode resets v and decodes data into it. The caller keeps its
	// reference to data.
	Decode(data mem.BufferSlice, v any) error

	// Copy sets dst to what Decode of Append(src) would make of it. dst and src
	// share no memory afterwards that either side may write. dst must not be a
	// message within src, but may be src itself.
	//
	// bound is an upper bound of the size of src's encoding in bytes. It is a
	// by-product of copying; Size returns the exact size.
	//
	// If ok is false, nothing was copied and dst is unchanged. Then err is the
	// error that Append(src) would return, or it is nil and the message has to
	// go through bytes. Copy runs no user code to find out.
	Copy(dst, src any) (bound int, ok bool, err error)

	// Copies reports whether Copy can copy v without running user code. Copy
	// may still return that this one message has to go through bytes.
	Copies(v any) bool

	// New returns an empty message of src's Go type, for Copy to fill and Move
	// to empty. It returns nil if Move does not support the type.
	New(src any) any

	// Move moves src's content to dst without copying what src refers to, and
	// leaves src empty. It does nothing and returns false if dst and src have
	// different Go types, or a type that New does not support.
	Move(dst, src any) bool
}

// A Message is one message, either live (a Go value and its sender's codec) or
// encoded.
type Message struct {
	value    any   // the message; a mem.BufferSlice or a *Prepared if encoded
	codec    Codec // nil if encoded
	bound    int
	captured bool // value is the transport's own, made by Codec.New
}

// Live returns the live message v, which c encodes if bytes are needed. The value
// still belongs to the sender, and must not change until the message was captured.
func Live(v any, c Codec) Message { return Message{value: v, codec: c} }

// Encoded returns an encoded message. The message takes over the caller's reference
// to data.
func Encoded(data mem.BufferSlice) Message { return Message{value: data, bound: data.Len()} }

// EncodedBytes returns an encoded message that is b, which must not change.
func EncodedBytes(b []byte) Message { return Message{value: plainBytes(b), bound: len(b)} }

// plainBytes is the value of an encoded message that needs no reference to its bytes.
type plainBytes []byte

func (m *Message) encoded() bool { return m.codec == nil }

// data returns the bytes of an encoded message.
func (m *Message) data() mem.BufferSlice {
	if p, ok := m.value.(*Prepared); ok {
		return mem.BufferSlice{mem.SliceBuffer(p.plain)}
	}
	if b, ok := m.value.(plainBytes); ok {
		return mem.BufferSlice{mem.SliceBuffer(b)}
	}
	data, _ := m.value.(mem.BufferSlice)
	return data
}

// Data returns the bytes of an encoded message. The caller must take its own reference
// to keep them.
func (m *Message) Data() mem.BufferSlice { return m.data() }

// Whole returns the bytes of an encoded message that are in one piece, and nil of any other.
func (m *Message) Whole() []byte {
	if data, ok := m.value.(mem.BufferSlice); ok && len(data) == 1 && m.encoded() {
		return data[0].ReadOnlyData()
	}
	return nil
}

// Bound returns an upper bound of m's encoded size in bytes. m must have been
// captured or be encoded.
func (m *Message) Bound() int { return m.bound }

// Append appends m's encoding to b. The error is a *SendError.
func (m *Message) Append(b []byte) ([]byte, error) {
	if m.encoded() {
		for _, d := range m.data() {
			b = largecopy.Append(b, d.ReadOnlyData())
		}
		return b, nil
	}
	b, err := m.codec.Append(b, m.value)
	if err != nil {
		return nil, &SendError{err}
	}
	return b, nil
}

// AppendAtOnce is Append if the codec can encode m into the room of b without computing
// its size first, which takes a good part of the time that encoding takes. Otherwise ok is
// false, and nothing was appended.
func (m *Message) AppendAtOnce(b []byte) (_ []byte, ok bool) {
	if m.encoded() {
		return b, false
	}
	c, ok := m.codec.(interface {
		AppendAtOnce(b []byte, v any) ([]byte, bool)
	})
	if !ok {
		return b, false
	}
	return c.AppendAtOnce(b, m.value)
}

// AppendWithin is AppendAtOnce, also for a message that is encoded and fits the room of b.
func (m *Message) AppendWithin(b []byte) (_ []byte, ok bool) {
	if !m.encoded() {
		return m.AppendAtOnce(b)
	}
	if m.bound > cap(b)-len(b) {
		return b, false
	}
	if plain, ok := m.value.(plainBytes); ok {
		return largecopy.Append(b, plain), true
	}
	for _, d := range m.data() {
		b = largecopy.Append(b, d.ReadOnlyData())
	}
	return b, true
}

// Encode returns m as an encoded message. The error is a *SendError.
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

// Freeze is Encode, but the bytes are the value's own if m's codec is for peers that share messages.
// The receiver frees them.
func (m *Message) Freeze() (Message, error) {
	c, ok := m.codec.(interface {
		Freeze(v any) (mem.BufferSlice, error)
	})
	if !ok {
		return m.Encode()
	}
	data, err := c.Freeze(m.value)
	if err != nil {
		return Message{}, &SendError{err}
	}
	return Encoded(data), nil
}

// Hold returns an encoded message with the bytes of m, which is encoded, and a reference to them
// of its own.
func (m *Message) Hold() Message {
	if _, ok := m.value.(mem.BufferSlice); ok {
		m.data().Ref()
	}
	return *m
}

// Give returns m as an encoded message without a copy, if its codec can make one: the bytes
// may be the value's own. So they must be used before the value changes, and freed. If ok is
// false and err is nil, the codec cannot. The error is a *SendError.
func (m *Message) Give() (given Message, ok bool, err error) {
	c, ok := m.codec.(interface {
		Give(v any) (mem.BufferSlice, error)
	})
	if !ok {
		return Message{}, false, nil
	}
	data, err := c.Give(m.value)
	if err != nil {
		return Message{}, false, &SendError{err}
	}
	return Encoded(data), true, nil
}

// A Measured is a message whose size was computed, with what its encoding needs of that.
type Measured interface {
	// Size returns the size of the encoding in bytes.
	Size() int

	// Append appends the encoding. It is called once at most, before the message changes.
	Append(b []byte) ([]byte, error)
}

// Measure returns the size of m's encoding, or 0 if to compute it could cost as much as to
// encode m. sized, unless it is nil, is for AppendMeasured. The error is a *SendError.
func (m *Message) Measure() (n int, sized Measured, err error) {
	if m.encoded() {
		return m.bound, nil, nil
	}
	if c, ok := m.codec.(interface{ Measure(v any) Measured }); ok {
		if sized = c.Measure(m.value); sized != nil {
			return sized.Size(), sized, nil
		}
	}
	if !m.codec.Copies(m.value) {
		return 0, nil, nil
	}
	n, err = m.Size()
	return n, nil, err
}

// AppendMeasured is Append after Measure, which has returned sized.
func (m *Message) AppendMeasured(b []byte, sized Measured) ([]byte, error) {
	if sized == nil {
		return m.Append(b)
	}
	b, err := sized.Append(b)
	if err != nil {
		return nil, &SendError{err}
	}
	return b, nil
}

// freeze is Freeze with the result on the heap.
func (m *Message) freeze() (*Message, error) {
	b, err := m.Freeze()
	if err != nil {
		return nil, err
	}
	return &b, nil
}

// CopiesTo reports whether m can be copied into to without encoding it and without
// running user code, so that any goroutine may do it.
func (m *Message) CopiesTo(to *Sink) bool {
	return !m.encoded() && m.codec == to.Codec && m.codec.Copies(m.value)
}

// Copies reports whether m's codec can copy it without running user code.
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

// Capture stores m in into as a copy, or as bytes, so that the sender may change its
// value. It reuses into's message from an earlier Capture if DecodeInto has emptied
// it and it has the same type. The error is a *SendError; into may be used for another
// Capture after it.
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
	bytes, err := m.Freeze()
	if err == nil {
		*into = bytes
	}
	return err
}

// DecodeInto puts m into to. It returns a *SendError, which the sender must see, if m
// cannot be encoded. It returns a *RecvError, which the receiver must see, if m cannot
// be decoded or is larger than to.Limit. A captured message is left empty, for another
// Capture.
func (m *Message) DecodeInto(to *Sink) error {
	if p, ok := m.value.(*Prepared); ok && m.encoded() {
		if len(p.plain) > to.Limit {
			return tooLarge(m.data(), to)
		}
		return DecodeBytes(p.plain, to) // keeps none of the bytes, which others receive, too
	}
	if m.encoded() {
		return m.decode(m.data(), to)
	}
	if ok, err := m.CopyInto(to); ok || err != nil {
		return err
	}
	b, err := m.Freeze()
	if err != nil {
		return err
	}
	err = b.decode(b.data(), to)
	b.Free() // not deferred: a codec that panics may have kept the bytes
	return err
}

// CopyInto is DecodeInto without encoding m. If ok is false and err is nil, m has to go through
// bytes: because of its codec, or because it is too large and would be compressed, which is done
// to the bytes.
func (m *Message) CopyInto(to *Sink) (ok bool, err error) {
	if m.encoded() || m.codec != to.Codec {
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

// countedBefore returns err, which says that a message is too large, or nil if its bytes must be
// compressed to tell how large.
func countedBefore(err error, to *Sink) error {
	if _, large := err.(*RecvError); large && Compressor(to.Compressor) != "" {
		return nil
	}
	return err
}

// tooLarge returns the error for a message that is larger than to.Limit. As in gRPC the size that
// counts first is the compressed one.
func tooLarge(data mem.BufferSlice, to *Sink) error {
	n := data.Len()
	if name := Compressor(to.Compressor); name != "" {
		if packed, err := Compress(data.Materialize(), name); err == nil {
			if len(packed) <= to.Limit {
				return &RecvError{Size: n, Limit: to.Limit, Inflated: true}
			}
			n = len(packed)
		}
	}
	return &RecvError{Size: n, Limit: to.Limit}
}

// DecodeBytes decodes b into to and does not retain b. The error is a *RecvError.
func DecodeBytes(b []byte, to *Sink) error {
	d, ok := to.Codec.(interface {
		DecodeBytes(b []byte, v any) error
	})
	if !ok {
		m := Encoded(mem.BufferSlice{mem.SliceBuffer(largecopy.Clone(b))}) // a codec may keep what it decodes
		return m.DecodeInto(to)
	}
	if len(b) > to.Limit {
		return &RecvError{Size: len(b), Limit: to.Limit}
	}
	if err := d.DecodeBytes(b, to.Dst); err != nil {
		return &RecvError{Err: err}
	}
	to.Size = len(b)
	return nil
}

// CountsReferences reports whether a codec keeps what it decodes only by references of its own,
// so that the memory can be used again when they were freed.
func CountsReferences(c Codec) bool {
	_, ok := c.(interface{ CountsReferences() })
	return ok
}

// DecodeOwned decodes b, whose owner does not change it any more, into to. kept reports whether
// the message may refer to b. The error is a *RecvError.
func DecodeOwned(b []byte, to *Sink) (kept bool, err error) {
	d, ok := to.Codec.(interface {
		DecodeOwned(b []byte, v any) (kept bool, err error)
	})
	if !ok {
		m := Encoded(mem.BufferSlice{mem.SliceBuffer(b)})
		return true, m.DecodeInto(to)
	}
	if len(b) > to.Limit {
		return false, &RecvError{Size: len(b), Limit: to.Limit}
	}
	if kept, err = d.DecodeOwned(b, to.Dst); err != nil {
		return kept, &RecvError{Err: err}
	}
	to.Size = len(b)
	return kept, nil
}

func (m *Message) decode(data mem.BufferSlice, to *Sink) error {
	n := data.Len()
	if n > to.Limit {
		return tooLarge(data, to)
	}
	if err := to.Codec.Decode(data, to.Dst); err != nil {
		return &RecvError{Err: err}
	}
	to.Size = n
	return nil
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
	if m.encoded() {
		m.data().Free()
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
