package flat

import (
	"context"
	"reflect"
	"runtime"
	"sync"
	"weak"

	flatbuffers "github.com/google/flatbuffers/go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/link"
)

// owned holds the memory of builders and of tables with large received messages. It keeps neither
// alive. When the garbage collector has found the owner, owned forgets the memory and does not
// free it, because tables within a message may be used for longer.
var owned sync.Map // of mem.Buffer, by weak.Pointer[byte]

// own records that v, a pointer, owns a reference to b.
func own(v any, b mem.Buffer) {
	at := pointerOf(v)
	key := weak.Make(at)
	if _, again := owned.Swap(key, b); !again {
		runtime.AddCleanup(at, func(key weak.Pointer[byte]) { owned.Delete(key) }, key)
	}
}

// disown returns the memory that v owned, or nil if it owned none.
func disown(v any) mem.Buffer {
	b, _ := owned.LoadAndDelete(weak.Make(pointerOf(v)))
	m, _ := b.(mem.Buffer)
	return m
}

// pointerOf returns the address that v, a pointer, holds.
func pointerOf(v any) *byte { return (*byte)(reflect.ValueOf(v).UnsafePointer()) }

// Release gives a received message back: m becomes an empty table, whose fields must not be read,
// and the memory of a large message can be used for another one. Other tables, vectors and strings
// of the message must not be used any more. If both sides share messages in one process, a message
// that was sent on must not be released. A release is never necessary, but saves the garbage
// collector work. m can be nil.
func Release(m flatbuffers.FlatBuffer) {
	if m == nil || pointerOf(m) == nil {
		return
	}
	if b := disown(m); b != nil {
		b.Free()
	}
	m.Init(nil, 0)
}

// NewRequest returns a builder with room for size bytes, for a message to the server of conn. Over
// shared memory a message of 32 KiB or more is built in memory that the server reads, and sent
// without a copy; so the server's process, which belongs to the same user, can make the builder
// panic. Over other connections the memory is pooled. A message that outgrows its room is sent as
// well, from other memory. A FlatBuffer is a little larger than its contents.
//
// The builder is for one message. After that was sent the builder is empty, and the earlier result
// of FinishedBytes must not be used any more.
func NewRequest(conn grpc.ClientConnInterface, size int) *flatbuffers.Builder {
	return newBuilder(call.ClientSession(conn), size)
}

// NewReply is [NewRequest] for a message to the client that has made a call. ctx is the context of
// the call's handler, or one derived from it.
func NewReply(ctx context.Context, size int) *flatbuffers.Builder {
	return newBuilder(call.HandlerSession(ctx), size)
}

func newBuilder(s link.Session, size int) *flatbuffers.Builder {
	if size < minKept {
		return flatbuffers.NewBuilder(size)
	}
	b, room := flatbuffers.NewBuilder(0), call.Draft(s, size)
	own(b, room)
	b.Bytes = room.ReadOnlyData()[:size:size] // a builder must not grow within its capacity
	b.Reset()
	return b
}

// take returns the message of a builder that is finished. A builder that owns memory loses it.
func take(b *flatbuffers.Builder) (mem.Buffer, error) {
	message, err := finished(b)
	if err != nil {
		return nil, err
	}
	room := disown(b)
	if room == nil {
		return mem.SliceBuffer(message), nil
	}
	whole, all := b.Bytes, room.ReadOnlyData()
	b.Bytes = nil
	b.Reset()
	if &whole[0] != &all[0] { // the builder has grown
		room.Free()
		return mem.SliceBuffer(message), nil
	}
	sent := room.Slice(len(whole)-len(message), len(whole))
	room.Free()
	return sent, nil
}
