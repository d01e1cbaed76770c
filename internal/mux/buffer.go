package mux

import (
	"math/bits"
	"sync"
)

// A buffer is pooled memory for reading, for writing, and for messages in between. It
// has one owner at a time.
type buffer struct{ b []byte }

// Buffers come in powers of two, from 32 bytes to 16 MiB. Larger ones are not pooled.
const (
	minBuffer = 5
	maxBuffer = 24
)

var buffers [maxBuffer - minBuffer + 1]sync.Pool

// newBuffer returns an empty buffer with room for n bytes.
func newBuffer(n int) *buffer {
	class := max(bits.Len(uint(max(n, 1)-1)), minBuffer)
	if class > maxBuffer {
		return &buffer{make([]byte, 0, n)}
	}
	if b, ok := buffers[class-minBuffer].Get().(*buffer); ok {
		return b
	}
	return &buffer{make([]byte, 0, 1<<class)}
}

// free returns the buffer to the pool. Neither b nor its contents may be used
// afterwards. b may be nil.
func (b *buffer) free() {
	if b == nil {
		return
	}
	class := bits.Len(uint(cap(b.b))) - 1 // rounded down: a pool's buffers are never too small
	if class < minBuffer || class > maxBuffer {
		return
	}
	b.b = b.b[:0]
	buffers[class-minBuffer].Put(b)
}

// grow returns a buffer with the contents of b and a capacity of at least n bytes. It
// frees b if it returns another one.
func (b *buffer) grow(n int) *buffer {
	if n <= cap(b.b) {
		return b
	}
	larger := newBuffer(n)
	larger.b = append(larger.b, b.b...)
	b.free()
	return larger
}
