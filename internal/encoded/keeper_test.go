package encoded

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/message"
)

// arrive returns a buffer with b, a message.
func arrive(k *Keeper, b []byte) *Buffer {
	data := k.NewBuffer(len(b), false)
	copy(data.B, b)
	return data
}

// arriveIn is arrive for a message that comes in pieces of n bytes.
func arriveIn(k *Keeper, b []byte, n int) *Buffer {
	var data *Buffer
	for size := len(b); len(b) > 0; b = b[min(n, len(b)):] {
		data = k.Add(data, b[:min(n, len(b))], size, false)
	}
	return data
}

func marshal(t *testing.T, m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Messages stay as they are, whatever comes after them, and whether or not they keep the memory
// that they came in.
func TestMessagesThatKeepTheirMemoryDoNotChange(t *testing.T) {
	var k Keeper
	var all sync.WaitGroup
	for seed := range uint64(4) {
		all.Go(func() {
			r := rand.New(rand.NewPCG(seed, 0))
			var got, want []*wrapperspb.BytesValue
			for i := range 60 {
				m := wrapperspb.Bytes(bytes.Repeat([]byte{byte(i + 1)}, []int{100, minKept - 10, minKept, 3 * minKept}[r.IntN(4)]))
				b := marshal(t, m)
				if r.IntN(8) == 0 { // the field is hardly more than half of it: nothing is kept
					b = append(b, marshal(t, m)...)
				}
				data := arrive(&k, b)
				if n := r.IntN(3); n > 0 {
					data.Free()
					data = arriveIn(&k, b, []int{10_000, 64 << 10}[n-1])
				}
				if r.IntN(10) == 0 { // nobody receives it
					data.Free()
					continue
				}
				out := new(wrapperspb.BytesValue)
				if err := Decode(data, false, "", &message.Sink{Dst: out, Codec: codec.Proto(), Limit: 1 << 30}); err != nil {
					t.Error(err)
				}
				got, want = append(got, out), append(want, m)
			}
			for i := range got {
				if !proto.Equal(got[i], want[i]) {
					t.Errorf("message %d of %d bytes has changed", i, len(want[i].Value))
				}
			}
		})
	}
	all.Wait()
}

func TestMemoryIsPooledWhereMessagesDoNotKeepIt(t *testing.T) {
	var k Keeper
	one := marshal(t, wrapperspb.Bytes(make([]byte, minKept)))
	two := append(bytes.Clone(one), one...)
	decode := func(b []byte) (own bool) {
		data := arrive(&k, b)
		own = data.keeper != nil
		if err := Decode(data, false, "", &message.Sink{Dst: new(wrapperspb.BytesValue), Codec: codec.Proto(), Limit: 1 << 30}); err != nil {
			t.Fatal(err)
		}
		return own
	}
	for range 3 {
		if !decode(one) {
			t.Fatal("a message that is one field does not get its own memory")
		}
	}
	if !decode(two) {
		t.Fatal("the first message of two fields does not get its own memory")
	}
	pooled := 0
	for !decode(two) {
		pooled++
	}
	if pooled != skipped {
		t.Errorf("%d messages were pooled after one that has not kept its memory, want %d", pooled, skipped)
	}
}

// What has arrived of a message takes no more memory than Growth allows, and a whole one of one large
// field gets its own memory.
func TestMessagesArriveInMemoryOfTheirOwn(t *testing.T) {
	var k Keeper
	for _, size := range []int{1, 1000, minKept - 1, minKept, 3<<20 + 1} {
		var data *Buffer
		for n := 0; n < size; {
			piece := make([]byte, min(64<<10, size-n))
			n += len(piece)
			data = k.Add(data, piece, size, false)
			if len(data.B) != n || cap(data.B) > max(2*Growth*n, 32) {
				t.Fatalf("%d bytes of %d take %d", n, size, cap(data.B))
			}
		}
		if own := data.keeper != nil; own != (size >= minKept) {
			t.Errorf("a message of %d bytes has its own memory: %v", size, own)
		}
	}
	if data := k.Add(nil, make([]byte, minKept), minKept, true); data.keeper != nil {
		t.Error("a compressed message has its own memory")
	}
}

func TestOtherMessagesArePooled(t *testing.T) {
	var k Keeper
	if k.NewBuffer(minKept-1, false).keeper != nil {
		t.Error("a small message has its own memory")
	}
	if k.NewBuffer(minKept, true).keeper != nil {
		t.Error("a compressed message has its own memory")
	}
}

func TestABufferMakesRoom(t *testing.T) {
	var b *Buffer
	for i := range 10_000 {
		before := b
		b = b.MakeRoom(3)
		if free := cap(b.B) - len(b.B); free < 3 || len(b.B) != 3*i {
			t.Fatalf("%d bytes, and room for %d more", len(b.B), free)
		}
		if before != nil && before != b && cap(b.B) < 2*len(b.B) {
			t.Errorf("with %d bytes the buffer grows to %d", len(b.B), cap(b.B))
		}
		b.B = append(b.B, 'a', 'b', 'c')
	}
	if !bytes.Equal(b.B, bytes.Repeat([]byte("abc"), 10_000)) {
		t.Error("the bytes have changed")
	}
}
