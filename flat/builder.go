package flat

import (
	"runtime"
	"sync"
	"weak"

	flatbuffers "github.com/google/flatbuffers/go"
	"google.golang.org/grpc/mem"
)

// NewBuilder returns a builder with room for size bytes from pool. A message that fits is not
// copied before it is sent, and its memory goes back to the pool afterwards. If the pool is
// nearcall's BufferPool, a peer over shared memory reads the message where it was built. A message
// that does not fit is sent as well, but the builder copies it to memory that is not from the
// pool. A FlatBuffer is a little larger than its contents.
//
// The builder is for one message. After that message was sent, the builder is empty, and the
// earlier result of FinishedBytes must not be used any more. If a builder is not sent, its memory
// goes back to the pool when the garbage collector finds it.
func NewBuilder(pool mem.BufferPool, size int) *flatbuffers.Builder {
	m := memory{pool: pool, b: pool.Get(max(size, 1))}
	b := flatbuffers.NewBuilder(0)
	b.Bytes = m.whole()
	b.Reset()
	key := weak.Make(b)
	building.Store(key, m)
	runtime.AddCleanup(b, func(key weak.Pointer[flatbuffers.Builder]) {
		if m, ok := building.LoadAndDelete(key); ok {
			m.(memory).free()
		}
	}, key)
	return b
}

// building holds the memory of the builders from NewBuilder that were not sent.
var building sync.Map // of memory, by weak.Pointer[flatbuffers.Builder]

// memory is a buffer from a pool.
type memory struct {
	pool mem.BufferPool
	b    *[]byte
}

// whole returns all of the memory without spare capacity, so that a builder cannot grow within
// it.
func (m memory) whole() []byte { return (*m.b)[:cap(*m.b):cap(*m.b)] }

func (m memory) free() { m.pool.Put(m.b) }

// Get and Put implement [mem.BufferPool] for the one buffer that has the memory of m.
func (m memory) Get(n int) *[]byte { return m.pool.Get(n) }
func (m memory) Put(*[]byte)       { m.free() }

// take returns the message of a builder that is finished. A builder from NewBuilder loses its
// memory.
func take(b *flatbuffers.Builder) (mem.Buffer, error) {
	message, err := finished(b)
	if err != nil {
		return nil, err
	}
	at, ok := building.LoadAndDelete(weak.Make(b))
	if !ok {
		return mem.SliceBuffer(message), nil
	}
	m := at.(memory)
	moved := &b.Bytes[0] != &m.whole()[0]
	b.Bytes = nil
	b.Reset()
	switch {
	case moved:
		m.free()
		return mem.SliceBuffer(message), nil
	case mem.IsBelowBufferPoolingThreshold(cap(message)): // package mem would not count its references
		own := append([]byte(nil), message...)
		m.free()
		return mem.SliceBuffer(own), nil
	}
	return mem.NewBuffer(&message, m), nil
}
