package mux

import (
	"bytes"
	"fmt"
	"io"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

	"github.com/nearcall/nearcall/internal/link"
)

// encode returns m as it is sent: in bytes, compressed with what name says. An
// empty message is not compressed. The error is a *link.SendError.
func encode(m *link.Message, name string) (b []byte, compressed bool, err error) {
	b, err = m.Append(nil)
	if err != nil || len(b) == 0 || name == "" || name == encoding.Identity {
		return b, false, err
	}
	c := encoding.GetCompressor(name)
	if c == nil {
		return nil, false, &link.SendError{Err: fmt.Errorf("no compressor is registered for %q", name)}
	}
	var out bytes.Buffer
	w, err := c.Compress(&out)
	if err == nil {
		if _, err = w.Write(b); err == nil {
			err = w.Close()
		}
	}
	if err != nil {
		return nil, false, &link.SendError{Err: err}
	}
	return out.Bytes(), true, nil
}

// decompress returns what data was before it was compressed, and frees it. The
// error is a *link.RecvError.
func decompress(data mem.BufferSlice, name string, limit int) (mem.BufferSlice, error) {
	defer data.Free()
	c := encoding.GetCompressor(name)
	if c == nil {
		return nil, &link.RecvError{Err: fmt.Errorf("no compressor is registered for %q", name)}
	}
	in := data.Reader()
	defer func() { _ = in.Close() }() // it has references of its own to what was not read
	r, err := c.Decompress(in)
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
