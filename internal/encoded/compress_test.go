package encoded

import (
	"bytes"
	"errors"
	"testing"

	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/message"
)

// A sizer is a codec that counts how often it is asked for a size.
type sizer struct {
	message.Codec
	asked *int
}

func (c sizer) Size(v any) (int, error) {
	*c.asked++
	return c.Codec.Size(v)
}

func (c sizer) Sized(v any) (message.Message, error) {
	*c.asked++
	return c.Codec.Sized(v)
}

// What waits to be written holds no more memory than it needs, though the size of a small
// message is not computed, and that of a larger one once.
func TestSizesAreComputedOnceAtMost(t *testing.T) {
	for size, want := range map[int]int{0: 0, 20: 0, 100: 0, smallMessage / 2: 0, 2 * smallMessage: 1} {
		v := &testpb.Payload{Body: bytes.Repeat([]byte("x"), size)}
		whole, err := proto.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		asked := 0
		m := message.Live(v, sizer{codec.Proto(), &asked})
		b, compressed, err := Encode(&m, "")
		if err != nil || !bytes.Equal(b.B, whole) || compressed {
			t.Errorf("%d bytes: encoded as %d bytes, %v", size, len(b.B), err)
		}
		if asked != want {
			t.Errorf("%d bytes: the codec was asked for %d sizes, want %d", size, asked, want)
		}
		if most := max(2*len(whole), 1<<minBuffer); cap(b.B) > most {
			t.Errorf("%d bytes: the buffer has %d, want at most %d", size, cap(b.B), most)
		}
		b.Free()
	}
}

// holder is a codec that refers to what it decodes, like many of encoding.CodecV2, and counts how
// often it marshals.
type holder struct{ marshals *int }

// A held is a message of holder.
type held struct {
	bytes []byte
	refs  mem.BufferSlice
}

func (holder) Name() string { return "holder" }

func (h holder) Marshal(v any) (mem.BufferSlice, error) {
	*h.marshals++
	if v.(*held).bytes == nil {
		return nil, errors.New("there is nothing")
	}
	return mem.BufferSlice{mem.SliceBuffer(v.(*held).bytes)}, nil
}

func (holder) Unmarshal(data mem.BufferSlice, v any) error {
	data.Ref()
	v.(*held).refs, v.(*held).bytes = data, data[0].ReadOnlyData()
	return nil
}

// wrapped is a codec that wraps another.
type wrapped struct{ message.Codec }

// A codec of package encoding marshals once, and what it gives is copied once.
func TestACodecOfOthersMarshalsOnce(t *testing.T) {
	for _, size := range []int{1, 100, smallMessage, 1 << 20} {
		n := 0
		v := &held{bytes: bytes.Repeat([]byte("x"), size)}
		m := message.Live(v, codec.WrapV2(holder{&n}))
		b, compressed, err := Encode(&m, "")
		if err != nil || compressed || !bytes.Equal(b.B, v.bytes) || &b.B[0] == &v.bytes[0] {
			t.Errorf("%d bytes: encoded as %d bytes, %v", size, len(b.B), err)
		}
		if n != 1 {
			t.Errorf("%d bytes: it marshals %d times", size, n)
		}
		if most := max(2*size, 1<<minBuffer); cap(b.B) > most {
			t.Errorf("%d bytes: the buffer has %d, want at most %d", size, cap(b.B), most)
		}
	}
	m := message.Live(new(held), codec.WrapV2(holder{new(int)}))
	var unsent *message.SendError
	if _, _, err := Encode(&m, ""); !errors.As(err, &unsent) {
		t.Errorf("the error of Marshal becomes %v", err)
	}
}

// What such a codec decodes is neither copied nor changed for as long as it has a reference. Then
// its memory is used again.
func TestReceivedMemoryIsUsedAgainAfterTheLastReference(t *testing.T) {
	c := codec.WrapV2(holder{new(int)})
	receivedMemoryIsUsedAgain(t, c)
	receivedMemoryIsUsedAgain(t, wrapped{c}) // which can do the same
}

func receivedMemoryIsUsedAgain(t *testing.T, c message.Codec) {
	var k Keeper
	for _, size := range []int{1, 10, minCounted - 1, minCounted, minCounted + 1, 100_000, minKept, 3 << 20} {
		for _, keeper := range []*Keeper{nil, &k} {
			var messages []held
			var buffers []*Buffer
			for i := range 4 {
				data := arrive(&k, bytes.Repeat([]byte{byte(i)}, size))
				if keeper == nil {
					data.keeper = nil
				}
				var m held
				if err := Decode(data, false, "", &message.Sink{Dst: &m, Codec: c, Limit: 1 << 30}); err != nil {
					t.Fatal(err)
				}
				messages, buffers = append(messages, m), append(buffers, data)
			}
			for i, m := range messages {
				if !bytes.Equal(m.bytes, bytes.Repeat([]byte{byte(i)}, size)) {
					t.Errorf("message %d of %d bytes has changed", i, size)
				}
				if copied := &m.bytes[0] != &buffers[i].B[:1][0]; copied != (size < minCounted) {
					t.Errorf("a message of %d bytes is copied: %v", size, copied)
				}
			}
			for i, m := range messages {
				if size > minCounted && len(buffers[i].B) != size {
					t.Errorf("the memory of message %d of %d bytes was freed before its last reference", i, size)
				}
				m.refs.Free()
				if size > minCounted && len(buffers[i].B) != 0 {
					t.Errorf("the memory of message %d of %d bytes was not freed", i, size)
				}
			}
		}
	}
}

func TestAMessageAboveTheLimitIsNotDecoded(t *testing.T) {
	var k Keeper
	data := arrive(&k, make([]byte, 5000))
	var got held
	var wrong *message.RecvError
	err := Decode(data, false, "", &message.Sink{Dst: &got, Codec: codec.WrapV2(holder{new(int)}), Limit: 4999})
	if !errors.As(err, &wrong) || wrong.Size != 5000 || got.refs != nil {
		t.Errorf("the error is %v", err)
	}
	if len(data.B) != 0 {
		t.Error("its memory is not freed")
	}
}
