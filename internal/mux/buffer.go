package mux

import (
	"math/bits"
	"sync"
)

// A buffer is memory that is used again: for what is read, for what is written,
// and for messages in between. Whoever has it owns it.
type buffer struct{ b []byte }

// Buffers come in powers of two, from 32 bytes to 16 MiB. What is larger is left
// to the collector.
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

// free gives the buffer back. Nobody uses it, or what it held, any more. It may
// be nil.
func (b *buffer) free() {
	if b == nil {
		return
	}
	class := bits.Len(uint(cap(b.b))) - 1 // it has at least as much room as its class
	if class < minBuffer || class > maxBuffer {
		return
	}
	b.b = b.b[:0]
	buffers[class-minBuffer].Put(b)
}

// grow makes room for n bytes in all.
func (b *buffer) grow(n int) *buffer {
	if n <= cap(b.b) {
		return b
	}
	larger := newBuffer(n)
	larger.b = append(larger.b, b.b...)
	b.free()
	return larger
}
