package message

import (
	"bytes"
	"fmt"
	"io"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// Compressor returns name, or the empty string if name stands for no compression.
func Compressor(name string) string {
	if name == encoding.Identity {
		return ""
	}
	return name
}

// Compress compresses b with the compressor registered as name. The error is a *SendError.
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

// Decompress decompresses data with the compressor registered as name. It never produces more than
// limit+1 bytes, and fails if there are more than limit. The error is a *RecvError.
func Decompress(data []byte, name string, limit int) (mem.BufferSlice, error) {
	if Compressor(name) == "" {
		return nil, &RecvError{Err: &CompressionError{"compressed flag set with identity or empty encoding", nil}}
	}
	c := encoding.GetCompressor(name)
	if c == nil {
		return nil, &RecvError{Err: &CompressionError{fmt.Sprintf("Decompressor is not installed for grpc-encoding %.256q", name), nil}}
	}
	r, err := c.Decompress(bytes.NewReader(data))
	if err != nil {
		return nil, &RecvError{Err: &CompressionError{"failed to decompress the message", err}}
	}
	if closer, ok := r.(io.Closer); ok { // Close returns it to the compressor's pool
		defer func() { _ = closer.Close() }()
	}
	// Read one byte more than the limit, to detect a message that is too large.
	// If limit+1 overflows, no message can be too large.
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

// A CompressionError is the Err of a SendError or a RecvError if compression or decompression
// failed, and not the codec.
type CompressionError struct {
	What string // the error, in grpc-go's words
	Err  error  // the compressor's error; may be nil
}

func (e *CompressionError) Error() string {
	if e.Err == nil {
		return e.What
	}
	return e.What + ": " + e.Err.Error()
}

func (e *CompressionError) Unwrap() error { return e.Err }

// A Prepared is a message that was encoded, and perhaps compressed, once, to be sent
// many times. It is immutable: any number of streams may send it concurrently.
type Prepared struct {
	plain      []byte
	compressed []byte // with encoding, if that is not empty
	encoding   string
}

// Prepare encodes m and, if encoding is not empty, compresses it. Empty messages are not
// compressed. The error is a *SendError.
func Prepare(m *Message, encoding string) (*Prepared, error) {
	b, err := m.Append(nil)
	if err != nil {
		return nil, err
	}
	p := &Prepared{plain: b}
	if encoding = Compressor(encoding); encoding != "" && len(b) > 0 {
		if p.compressed, err = Compress(b, encoding); err != nil {
			return nil, err
		}
		p.encoding = encoding
	}
	return p, nil
}

// Message returns p as a message to send.
func (p *Prepared) Message() Message { return Message{value: p, bound: len(p.plain)} }

// Size returns the length of the encoding, in bytes.
func (p *Prepared) Size() int { return len(p.plain) }

// Compressed returns m compressed with encoding, if Prepare did that. The bytes must not be
// modified.
func (m *Message) Compressed(encoding string) ([]byte, bool) {
	p, ok := m.value.(*Prepared)
	if !ok || encoding == "" || p.encoding != encoding {
		return nil, false
	}
	return p.compressed, true
}
