package link

import (
	"bytes"
	"fmt"
	"io"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// EncodingKey is the header with which a callee says what its messages are
// compressed with, where that is not what the call was opened with. It is gRPC's
// own, and no user can set it.
const EncodingKey = "grpc-encoding"

// Compressor returns the name of what compresses where name was asked for; empty
// for nothing.
func Compressor(name string) string {
	if name == encoding.Identity {
		return ""
	}
	return name
}

// Compress returns b compressed by the compressor that is registered as name. The
// error is a *SendError.
func Compress(b []byte, name string) ([]byte, error) {
	c := encoding.GetCompressor(name)
	if c == nil {
		return nil, &SendError{Err: fmt.Errorf("no compressor is registered for %q", name)}
	}
	var out bytes.Buffer
	w, err := c.Compress(&out)
	if err == nil {
		if _, err = w.Write(b); err == nil {
			err = w.Close()
		}
	}
	if err != nil {
		return nil, &SendError{Err: &CompressionError{"error while compressing", err}}
	}
	return out.Bytes(), nil
}

// Decompress returns what data was before it was compressed. It makes no more of it
// than limit bytes and one. The error is a *RecvError.
func Decompress(data []byte, name string, limit int) (mem.BufferSlice, error) {
	if Compressor(name) == "" {
		return nil, &RecvError{Err: &CompressionError{"compressed flag set with identity or empty encoding", nil}}
	}
	c := encoding.GetCompressor(name)
	if c == nil {
		return nil, &RecvError{Err: &CompressionError{fmt.Sprintf("Decompressor is not installed for grpc-encoding %q", name), nil}}
	}
	r, err := c.Decompress(bytes.NewReader(data))
	if err != nil {
		return nil, &RecvError{Err: &CompressionError{"failed to decompress the message", err}}
	}
	if closer, ok := r.(io.Closer); ok { // it goes back to a pool
		defer func() { _ = closer.Close() }()
	}
	// One byte more than is taken tells a message that is too large from one
	// that is not. A limit that has no successor needs none.
	out, err := mem.ReadAll(io.LimitReader(r, max(int64(limit)+1, int64(limit))), mem.DefaultBufferPool())
	if err != nil {
		out.Free()
		return nil, &RecvError{Err: &CompressionError{"failed to read decompressed data", err}}
	}
	if n := out.Len(); n > limit {
		out.Free()
		return nil, &RecvError{Size: n, Limit: limit, Inflated: true}
	}
	return out, nil
}

// A CompressionError is the Err of a SendError or a RecvError that is not about
// the message itself, but about how it was compressed.
type CompressionError struct {
	What string // went wrong, as gRPC says it
	Err  error  // the compressor's own; may be nil
}

func (e *CompressionError) Error() string {
	if e.Err == nil {
		return e.What
	}
	return e.What + ": " + e.Err.Error()
}

func (e *CompressionError) Unwrap() error { return e.Err }
