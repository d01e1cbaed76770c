package mux

import (
	"bytes"
	"fmt"
	"io"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

// encode makes m the message of a step: in bytes, compressed with what name says.
// An empty message is not compressed. The bytes are in what it returns, unless
// they are where the peer finds them. The error is a *link.SendError.
func (s *Session) encode(step *wire.Step, m *link.Message, name string) (*buffer, error) {
	step.HasMessage = true
	n := 0
	if m.Copies() { // else asking for the size may cost as much as encoding
		var err error
		if n, err = m.Size(); err != nil {
			return nil, err
		}
	}
	places := s.placer != nil && compressor(name) == ""
	if places && n >= leastPlaced {
		if b, err := s.put(step, m, n); b != nil || err != nil || step.Placed {
			return b, err
		}
	}
	b := newBuffer(n)
	var err error
	if b.b, err = m.Append(b.b); err != nil {
		return nil, err
	}
	if places && n == 0 && len(b.b) >= leastPlaced && s.move(step, b) { // how large it is was not known
		return nil, nil
	}
	b, step.Compressed, err = compress(b, compressor(name))
	if err == nil {
		step.Message = b.b
	}
	return b, err
}

// compressor returns the name of what compresses; empty for nothing.
func compressor(name string) string {
	if name == encoding.Identity {
		return ""
	}
	return name
}

// compress returns b as it is sent, and takes it over.
func compress(b *buffer, name string) (_ *buffer, compressed bool, err error) {
	if len(b.b) == 0 || name == "" {
		return b, false, nil
	}
	c := encoding.GetCompressor(name)
	if c == nil {
		return nil, false, &link.SendError{Err: fmt.Errorf("no compressor is registered for %q", name)}
	}
	var out bytes.Buffer
	w, err := c.Compress(&out)
	if err == nil {
		if _, err = w.Write(b.b); err == nil {
			err = w.Close()
		}
	}
	b.free()
	if err != nil {
		return nil, false, &link.SendError{Err: err}
	}
	return &buffer{out.Bytes()}, true, nil
}

// decode puts what arrived where to says. The error is a *link.RecvError.
func decode(data *buffer, compressed bool, name string, to *link.Sink) error {
	var b []byte
	if data != nil {
		b = data.b
	}
	if !compressed {
		err := link.DecodeBytes(b, to)
		data.free() // not where a codec panics: what it does to b is not known then
		return err
	}
	plain, err := decompress(b, name, to.Limit)
	data.free()
	if err != nil {
		return err
	}
	m := link.Encoded(plain)
	defer m.Free()
	return m.DecodeInto(to)
}

// decompress returns what data was before it was compressed. The error is a
// *link.RecvError.
func decompress(data []byte, name string, limit int) (mem.BufferSlice, error) {
	c := encoding.GetCompressor(name)
	if c == nil {
		return nil, &link.RecvError{Err: fmt.Errorf("no compressor is registered for %q", name)}
	}
	r, err := c.Decompress(bytes.NewReader(data))
	if err != nil {
		return nil, &link.RecvError{Err: err}
	}
	if closer, ok := r.(io.Closer); ok { // it goes back to a pool
		defer func() { _ = closer.Close() }()
	}
	// One byte more than is taken tells a message that is too large from one
	// that is not. A limit that has no successor needs none.
	out, err := mem.ReadAll(io.LimitReader(r, max(int64(limit)+1, int64(limit))), mem.DefaultBufferPool())
	if err != nil {
		out.Free()
		return nil, &link.RecvError{Err: err}
	}
	if n := out.Len(); n > limit {
		out.Free()
		return nil, &link.RecvError{Size: n, Limit: limit}
	}
	return out, nil
}
