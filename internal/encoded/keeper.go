package encoded

import (
	"sync/atomic"

	"github.com/nearcall/nearcall/internal/bulk"
)

// minKept is the size from which messages may keep the memory that they come in, in bytes.
const minKept = 256 << 10

// A Keeper supplies the memory into which large messages are copied before they are decoded.
// Most of them are mostly one field, which can refer to that memory, so that it is not copied
// again. Then the memory is not pooled. But where messages do not keep it, pooled memory costs
// less. So after a message that has not kept its memory, some get pooled memory.
//
// The zero value is ready to use. It may be used concurrently.
type Keeper struct{ skip atomic.Int32 }

// skipped is how many large messages get pooled memory after one that has not kept its own.
const skipped = 31

// NewBuffer returns a buffer of the length of a message, to be filled with it and passed to
// [Decode].
func (k *Keeper) NewBuffer(size int, compressed bool) *Buffer {
	b := k.empty(size, compressed)
	b.B = b.B[:size]
	return b
}

func (k *Keeper) empty(size int, compressed bool) *Buffer {
	if size < minKept || compressed {
		return NewBuffer(size)
	}
	if left := k.skip.Load(); left > 0 {
		k.skip.CompareAndSwap(left, left-1)
		return NewBuffer(size)
	}
	return &Buffer{B: bulk.Uncleared(size)[:0], keeper: k}
}

// note records whether a message has kept its memory.
func (k *Keeper) note(kept bool) {
	if !kept {
		k.skip.Store(skipped)
	}
}
