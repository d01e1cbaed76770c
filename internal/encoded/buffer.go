// Package encoded holds the code that mux and quic share to send messages as bytes: pooled
// buffers, compression, the queue of received frames, the replies of a unary call, and the
// reasons for which calls are aborted.
package encoded

import (
	"math/bits"
	"sync"
)

// A Buffer is pooled memory for reads, for writes and for queued messages. It has one owner at a
// time.
type Buffer struct {
	B      []byte
	keeper *Keeper // owns the memory if a message may keep it; nil for pooled memory
}

// Buffers come in powers of two, from 32 bytes to 16 MiB. Larger ones are not pooled.
const (
	minBuffer = 5
	maxBuffer = 24
)

var buffers [maxBuffer - minBuffer + 1]sync.Pool

// NewBuffer returns an empty buffer with room for n bytes.
func NewBuffer(n int) *Buffer {
	class := max(bits.Len(uint(max(n, 1)-1)), minBuffer)
	if class > maxBuffer {
		return &Buffer{B: make([]byte, 0, n)}
	}
	if b, ok := buffers[class-minBuffer].Get().(*Buffer); ok {
		return b
	}
	return &Buffer{B: make([]byte, 0, 1<<class)}
}

// Free returns the buffer to the pool. b and its contents must not be used afterwards. b
// may be nil.
func (b *Buffer) Free() {
	if b == nil {
		return
	}
	class := bits.Len(uint(cap(b.B))) - 1 // rounded down: a pool's buffers are never too small
	if class < minBuffer || class > maxBuffer {
		return
	}
	b.B, b.keeper = b.B[:0], nil
	buffers[class-minBuffer].Put(b)
}

// Grow returns a buffer with the contents of b and a capacity of at least n bytes. It
// frees b if it returns another one.
func (b *Buffer) Grow(n int) *Buffer {
	if n <= cap(b.B) {
		return b
	}
	larger := NewBuffer(n)
	larger.B = append(larger.B, b.B...)
	b.Free()
	return larger
}
