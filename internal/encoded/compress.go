package encoded

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
)

// Encode encodes m and compresses it with the compressor called name, "" or "identity" for
// none. Empty messages are not compressed. The error is a *message.SendError.
func Encode(m *message.Message, name string) (b *Buffer, compressed bool, err error) {
	name = message.Compressor(name)
	if b := Ready(m, name); b != nil {
		return b, true, nil
	}
	if b := Small(m); b != nil {
		return Compress(b, name)
	}
	sized, err := m.Sized()
	if err != nil {
		return nil, false, err
	}
	defer sized.Free()
	b = NewBuffer(sized.Bound())
	if b.B, err = sized.Append(b.B); err != nil {
		return nil, false, err
	}
	return Compress(b, name)
}

// Small returns m encoded, if that takes no more than smallMessage and m's codec need not compute
// the size first. Otherwise it returns nil.
func Small(m *message.Message) *Buffer {
	scratch := NewBuffer(smallMessage)
	defer scratch.Free() // deferred, because the codec may panic
	small, ok := m.AppendWithin(scratch.B)
	if !ok {
		return nil
	}
	b := NewBuffer(len(small))
	b.B = append(b.B, small...)
	return b
}

// smallMessage is the size up to which messages are encoded into memory that was allocated before
// their size was known, in bytes.
const smallMessage = 4 << 10

// Ready returns a copy of m's compressed form if m was prepared with the compressor, and nil
// otherwise.
func Ready(m *message.Message, name string) *Buffer {
	ready, ok := m.Compressed(name)
	if !ok {
		return nil
	}
	b := NewBuffer(len(ready))
	b.B = append(b.B, ready...)
	return b
}

// Compress returns b compressed, or b itself if it is empty or name is empty. It takes
// ownership of b.
func Compress(b *Buffer, name string) (_ *Buffer, compressed bool, err error) {
	if len(b.B) == 0 || name == "" {
		return b, false, nil
	}
	out, err := message.Compress(b.B, name)
	b.Free()
	if err != nil {
		return nil, false, err
	}
	return &Buffer{B: out}, true, nil
}

// Decode decompresses data if needed and decodes it into the Sink to. It frees data, which may be
// nil. The error is a *message.RecvError.
func Decode(data *Buffer, compressed bool, name string, to *message.Sink) (err error) {
	if data == nil {
		return to.DecodeBytes(nil, compressed, name)
	}
	kept := false
	switch {
	case !compressed && len(data.B) >= minCounted && to.Codec.KeepsReferences():
		return decodeCounted(data, to)
	case !compressed && data.keeper != nil:
		kept, err = to.Decode(message.Data{Bytes: data.B, Stay: true})
		data.keeper.note(kept)
	default:
		err = to.DecodeBytes(data.B, compressed, name)
	}
	if !kept {
		data.Free() // not deferred: a codec that panics may have kept the bytes
	}
	return err
}

// minCounted is the size from which package mem counts the references to a buffer, in bytes.
// Shorter ones are copied.
const minCounted = 1 << 10

// decodeCounted is Decode for a codec that counts its references to data. Releasing the last
// reference frees data.
func decodeCounted(data *Buffer, to *message.Sink) error {
	if data.keeper != nil {
		data.keeper.note(false) // the next messages get pooled memory
	}
	counted := mem.BufferSlice{mem.NewBuffer(&data.B, returning{data})}
	_, err := to.Decode(message.Data{Buffers: counted})
	counted.Free() // not deferred: a codec that panics may have kept the bytes
	return err
}

// A returning is a mem.BufferPool that frees its buffer when the last reference is freed.
type returning struct{ *Buffer }

// Get implements [mem.BufferPool]. It is not used.
func (returning) Get(n int) *[]byte { b := make([]byte, n); return &b }

// Put implements [mem.BufferPool].
func (r returning) Put(*[]byte) { r.Free() }

// EncodingOf returns the compressor that a callee's header names for its messages. ok is
// false if the header names none.
func EncodingOf(header metadata.MD) (name string, ok bool) {
	names := header[link.EncodingKey]
	if len(names) == 0 {
		return "", false
	}
	return names[0], true
}
