// Package encoded holds the code that mux and quic share to send messages as bytes: pooled
// buffers, compression, the queue of received frames, the replies of a unary call, and the
// reasons for which calls are aborted.
package encoded

import (
	"math/bits"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"
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

// MakeRoom returns b, or a buffer with its contents, that has room for n more bytes. If b, which may
// be nil, has to grow, it at least doubles.
func (b *Buffer) MakeRoom(n int) *Buffer {
	switch {
	case b == nil:
		return NewBuffer(n)
	case len(b.B)+n > cap(b.B):
		return b.Grow(max(len(b.B)+n, 2*len(b.B)))
	}
	return b
}

// Messages of at least minKept bytes may keep the memory that they arrive in.
const minKept = 256 << 10

// A Keeper supplies the memory in which large messages arrive, or into which they are copied from
// shared memory before they are decoded. Most large messages consist mostly of one field, which
// can refer to that memory instead of a copy. Memory that a message keeps does not come from a
// pool. Where messages do not keep their memory, pooled memory costs less. So after a message that
// did not keep its memory, the Keeper uses pooled memory for the next ones.
//
// The zero value is ready to use. It is safe for concurrent use.
type Keeper struct{ skip atomic.Int32 }

// skipped is how many large messages get pooled memory after a message that did not keep its
// memory.
const skipped = 31

// NewBuffer returns a buffer of the length of a message. The caller fills it and passes it to
// [Decode].
func (k *Keeper) NewBuffer(size int, compressed bool) *Buffer {
	b := k.empty(size, compressed)
	b.B = b.B[:size]
	return b
}

// Add appends a piece of a message of size bytes to b, which holds the earlier pieces, and
// returns the buffer that holds all. b is nil before the first piece.
func (k *Keeper) Add(b *Buffer, piece []byte, size int, compressed bool) *Buffer {
	have := 0
	if b != nil {
		have = len(b.B)
	}
	if need := have + len(piece); b == nil || need > cap(b.B) {
		var larger *Buffer
		if room := Room(size, need); room < size {
			larger = NewBuffer(room)
		} else {
			larger = k.empty(size, compressed)
		}
		if b != nil {
			larger.B = append(larger.B, b.B...)
			b.Free()
		}
		b = larger
	}
	b.B = append(b.B, piece...)
	return b
}

// empty returns an empty buffer with room for a message.
func (k *Keeper) empty(size int, compressed bool) *Buffer {
	if size < minKept || compressed {
		return NewBuffer(size)
	}
	if left := k.skip.Load(); left > 0 {
		k.skip.CompareAndSwap(left, left-1)
		return NewBuffer(size)
	}
	return &Buffer{B: uncleared(size)[:0], keeper: k}
}

// uncleared returns n bytes with any contents. n must be greater than zero.
func uncleared(n int) []byte {
	var s strings.Builder // its memory is not cleared
	s.Grow(n)
	s.WriteByte(0)
	return unsafe.Slice(unsafe.StringData(s.String()), n)
}

// note records whether a message has kept its memory.
func (k *Keeper) note(kept bool) {
	if !kept {
		k.skip.Store(skipped)
	}
}
