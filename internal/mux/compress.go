package mux

import (
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

// encode makes m the message of step: serialized, and compressed with the compressor
// called name. Empty messages are not compressed. It returns the buffer with the bytes,
// or nil if they were put in a place that the peer can read. The error is a
// *link.SendError.
func (s *Session) encode(step *wire.Step, m *link.Message, name string) (*buffer, error) {
	step.HasMessage = true
	if b := encodeSmall(m); b != nil {
		return pack(step, b, link.Compressor(name))
	}
	n := 0
	if m.Copies() { // otherwise Size may cost as much as encoding
		var err error
		if n, err = m.Size(); err != nil {
			return nil, err
		}
	}
	name = link.Compressor(name)
	if ready, ok := m.Compressed(name); ok {
		b := newBuffer(len(ready))
		b.b = append(b.b, ready...)
		step.Message, step.Compressed = b.b, true
		return b, nil
	}
	places := s.placer != nil && name == ""
	if places && n >= minPlaced {
		if b, err := s.encodeInPlace(step, m, n); b != nil || err != nil || step.Placed {
			return b, err
		}
	}
	b := newBuffer(n)
	var err error
	if b.b, err = m.Append(b.b); err != nil {
		return nil, err
	}
	if places && n == 0 && len(b.b) >= minPlaced && s.moveToPlace(step, b) { // the size was not known before encoding
		return nil, nil
	}
	return pack(step, b, name)
}

// encodeSmall returns m encoded, if that takes no more than smallMessage and m's codec need
// not know the size before. Otherwise it returns nil.
func encodeSmall(m *link.Message) *buffer {
	scratch := newBuffer(smallMessage)
	defer scratch.free() // deferred, because the codec may panic
	encoded, ok := m.AppendAtOnce(scratch.b)
	if !ok {
		return nil
	}
	b := newBuffer(len(encoded))
	b.b = append(b.b, encoded...)
	return b
}

// smallMessage is the size up to which messages are encoded into memory that was not made
// for their size, in bytes.
const smallMessage = 4 << 10

// pack makes b the message of step, compressed with the compressor called name. It takes
// ownership of b, and returns the buffer with the bytes.
func pack(step *wire.Step, b *buffer, name string) (_ *buffer, err error) {
	b, step.Compressed, err = compress(b, name)
	if err == nil {
		step.Message = b.b
	}
	return b, err
}

// compress returns b compressed, or b itself if it is empty or there is no compressor.
// It takes ownership of b.
func compress(b *buffer, name string) (_ *buffer, compressed bool, err error) {
	if len(b.b) == 0 || name == "" {
		return b, false, nil
	}
	out, err := link.Compress(b.b, name)
	b.free()
	if err != nil {
		return nil, false, err
	}
	return &buffer{out}, true, nil
}

// decode decompresses data if needed and decodes it into to. It frees data. The error
// is a *link.RecvError.
func decode(data *buffer, compressed bool, name string, to *link.Sink) error {
	var b []byte
	if data != nil {
		b = data.b
	}
	if !compressed {
		err := link.DecodeBytes(b, to)
		data.free() // not deferred: a codec that panics may have kept the bytes
		return err
	}
	plain, err := link.Decompress(b, name, to.Limit)
	data.free()
	if err != nil {
		return err
	}
	m := link.Encoded(plain)
	defer m.Free()
	return m.DecodeInto(to)
}
