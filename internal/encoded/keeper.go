package encoded

import (
	"strings"
	"sync/atomic"
	"unsafe"
)

// Messages of at least minKept bytes may keep the memory that they arrive in.
const minKept = 256 << 10

// A Keeper supplies the memory into which large messages are copied from shared memory before they
// are decoded. Most large messages consist mostly of one field, which can refer to that memory
// instead of a copy. Memory that a message keeps does not come from a pool. Where messages do not
// keep their memory, pooled memory costs less. So after a message that has not kept its memory,
// the Keeper gives pooled memory to the next ones.
//
// The zero value is ready to use. It is safe for concurrent use.
type Keeper struct{ skip atomic.Int32 }

// skipped is how many large messages get pooled memory after one that has not kept its memory.
const skipped = 31

// NewBuffer returns a buffer of the length of a message. The caller fills it and passes it to
// [Decode].
func (k *Keeper) NewBuffer(size int, compressed bool) *Buffer {
	if size >= minKept && !compressed && !k.skips() {
		return &Buffer{B: uncleared(size), keeper: k}
	}
	b := NewBuffer(size)
	b.B = b.B[:size]
	return b
}

// skips reports whether the next large message gets pooled memory.
func (k *Keeper) skips() bool {
	left := k.skip.Load()
	if left > 0 {
		k.skip.CompareAndSwap(left, left-1)
	}
	return left > 0
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
