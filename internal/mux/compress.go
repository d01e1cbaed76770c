package mux

import (
	"github.com/nearcall/nearcall/internal/encoded"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

// encode makes m the message of step: serialized, and compressed with the compressor called name.
// Empty messages are not compressed. It returns the buffer with the bytes, or nil if they are in
// a place that the peer can read. The error is a *link.SendError.
func (s *Session) encode(step *wire.Step, m *link.Message, name string) (*buffer, error) {
	step.HasMessage = true
	name = link.Compressor(name)
	if b := encoded.Ready(m, name); b != nil {
		step.Message, step.Compressed = b.B, true
		return b, nil
	}
	if b := encoded.Small(m); b != nil {
		return pack(step, b, name)
	}
	sized, err := m.Sized()
	if err != nil {
		return nil, err
	}
	defer sized.Free()
	n := sized.Bound()
	places := s.placer != nil && name == ""
	if places && n >= minPlaced {
		if data := sized.Data(); len(data) == 1 {
			if step.Place, step.Placed = s.placer.PlaceOf(data[0].ReadOnlyData()); step.Placed {
				step.Size = n
				return nil, nil
			}
		}
		if b, err := s.encodeInPlace(step, &sized); b != nil || err != nil || step.Placed {
			return b, err
		}
	}
	b := newBuffer(n)
	if b.B, err = sized.Append(b.B); err != nil {
		return nil, err
	}
	if places && n == 0 && len(b.B) >= minPlaced && s.moveToPlace(step, b) { // the size was not known before encoding
		return nil, nil
	}
	return pack(step, b, name)
}

// pack makes b the message of step, compressed with the compressor called name. It takes
// ownership of b, and returns the buffer with the bytes.
func pack(step *wire.Step, b *encoded.Buffer, name string) (_ *encoded.Buffer, err error) {
	b, step.Compressed, err = encoded.Compress(b, name)
	if err == nil {
		step.Message = b.B
	}
	return b, err
}
