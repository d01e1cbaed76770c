// Package flat carries FlatBuffers, which are read where they lie and never decoded.
//
// The messages and the stubs are those that flatc generates with --go --grpc. They work on a
// nearcall.ClientConn and a nearcall.Server, and on those of grpc-go, with the codec of this
// package. It differs from the codec of package flatbuffers in three ways:
//
//   - It verifies what it receives, as the schema demands, before a handler sees it: on a message
//     that was not verified, the generated code can panic or read beyond it.
//   - It sends a builder's bytes without a copy, and leaves a large message where it has arrived.
//     Between two processes of a host a message is copied once on each side.
//   - A received message can be sent on as it is.
//
// FlatBuffers pay where messages are large, and where their receivers read a part of them. Small
// messages are not faster than protobuf's, and a builder is more work than a struct.
package flat

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"weak"

	flatbuffers "github.com/google/flatbuffers/go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/call/server"
	"github.com/nearcall/nearcall/internal/link"
)

// Name is the content-subtype of FlatBuffers, as in package flatbuffers.
const Name = "flatbuffers"

// NewCodec returns a codec for the tables of compiled schemas, named [Name]. A compiled schema is
// what flatc --binary --schema writes, with the extension bfbs. NewCodec panics if a schema is
// something else, so the program must trust it: embed it. A server uses the codec with
// encoding.RegisterCodecV2 or nearcall.ForceServerCodecV2, and a client with grpc.ForceCodecV2
// among its default call options.
//
// It sends a *flatbuffers.Builder that is finished, or a table that was received as a whole
// message. A builder can be used again once the call or Send has returned, if the two sides do not
// share messages in one process. A builder of [NewRequest] or [NewReply] is empty after it was
// sent. The codec receives into the types that flatc generates for tables. It finds the table of
// such a type in the schemas by the names of the Go type and of its package. The type store.Item
// is the table store.Item, or the table Item of a longer namespace that ends with store. The codec
// does not receive into a type that matches no table of the schemas, or several.
//
// A received message belongs to its receiver, for as long as any part of it is used or until
// [Release].
//
// The codec is safe for concurrent use.
func NewCodec(schemas ...[]byte) encoding.CodecV2 {
	c := new(codec)
	for _, bfbs := range schemas {
		tables, err := parse(bfbs)
		if err != nil {
			panic(err)
		}
		c.tables = append(c.tables, tables...)
	}
	return c
}

type codec struct {
	tables []*table
	types  sync.Map // of *table, by reflect.Type
}

// Name implements [encoding.CodecV2].
func (c *codec) Name() string { return Name }

// Marshal implements [encoding.CodecV2].
func (c *codec) Marshal(v any) (mem.BufferSlice, error) {
	switch v := v.(type) {
	case *flatbuffers.Builder:
		b, err := take(v)
		if err != nil {
			return nil, err
		}
		return mem.BufferSlice{b}, nil
	case flatbuffers.FlatBuffer:
		if pointerOf(v) == nil {
			return nil, fmt.Errorf("flat: this %T is nil: send a message that was received, or a *flatbuffers.Builder", v)
		}
		t := v.Table()
		if len(t.Bytes) == 0 {
			return nil, fmt.Errorf("flat: this %T is empty: it was released, or nothing was received into it", v)
		}
		if len(t.Bytes) < offsetSize || flatbuffers.GetUOffsetT(t.Bytes) != t.Pos {
			return nil, fmt.Errorf("flat: this %T is a part of a message; build a message with it", v)
		}
		if b, ok := owned.Load(weak.Make(pointerOf(v))); ok {
			b.(mem.Buffer).Ref()
			return mem.BufferSlice{b.(mem.Buffer)}, nil
		}
		return mem.BufferSlice{mem.SliceBuffer(t.Bytes)}, nil
	}
	return nil, fmt.Errorf("flat: %T is not a FlatBuffer: send a *flatbuffers.Builder", v)
}

var errUnfinished = errors.New("flat: the builder is not finished: call Finish with the offset of the root before it is sent")

// finished returns the bytes of a builder.
func finished(b *flatbuffers.Builder) (_ []byte, err error) {
	if b == nil {
		return nil, errUnfinished
	}
	defer func() {
		if recover() != nil { // this is the only way to find out
			err = errUnfinished
		}
	}()
	return b.FinishedBytes(), nil
}

// A message of at least minKept bytes stays in the memory that it was received in. Smaller
// messages are copied, so that the memory can be reused.
const minKept = 16 << 10

// Unmarshal implements [encoding.CodecV2].
func (c *codec) Unmarshal(data mem.BufferSlice, v any) error {
	to, ok := v.(flatbuffers.FlatBuffer)
	if !ok {
		return fmt.Errorf("flat: %T is not a table: receive into a type that flatc has generated", v)
	}
	t, err := c.tableOf(v)
	if err != nil {
		return err
	}
	var b []byte
	var kept mem.Buffer
	switch {
	case data.Len() < minKept:
		b = data.Materialize()
	case len(data) == 1:
		kept, b = data[0], data[0].ReadOnlyData()
	default:
		kept = data.MaterializeToBuffer(mem.DefaultBufferPool())
		defer kept.Free()
		b = kept.ReadOnlyData()
	}
	root, err := t.verify(b)
	if err != nil {
		return fmt.Errorf("flat: this is not a message of %s: %w", t.name, err)
	}
	if kept != nil {
		kept.Ref()
		own(v, kept)
	}
	to.Init(b, flatbuffers.UOffsetT(root))
	return nil
}

// tableOf returns the table that v's type is generated from.
func (c *codec) tableOf(v any) (*table, error) {
	typ := reflect.TypeOf(v)
	if t, ok := c.types.Load(typ); ok {
		return t.(*table), nil
	}
	name := strings.TrimPrefix(typ.String(), "*") // with the name of its package
	var found *table
	for _, t := range c.tables {
		if !t.hasType(name) {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("flat: the type %s can be the table %s or %s: make a codec for each", name, found.name, t.name)
		}
		found = t
	}
	if found == nil {
		return nil, fmt.Errorf("flat: the codec's schemas have no table %s", name)
	}
	c.types.Store(typ, found)
	return found, nil
}

// hasType reports whether flatc gives t a Go type of that name: the package has the last name of
// the namespace, or any if there is no namespace.
func (t *table) hasType(name string) bool {
	if !strings.Contains(t.name, ".") {
		return strings.HasSuffix(name, "."+t.name)
	}
	return t.name == name || strings.HasSuffix(t.name, "."+name)
}

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
	return newBuilder(server.HandlerSession(ctx), size)
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
