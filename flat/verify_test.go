package flat_test

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	flatbuffers "github.com/google/flatbuffers/go"
	"google.golang.org/grpc/mem"

	"github.com/nearcall/nearcall/flat/internal/store"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

// verify verifies b as a picture.
func verify(b []byte) error {
	return codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, new(store.Picture))
}

// readIfVerified reads all of b if it is verified, which must not panic, and reports whether it was.
func readIfVerified(b []byte) bool {
	if verify(b) != nil {
		return false
	}
	_ = text(store.GetRootAsPicture(b, 0))
	return true
}

func TestMessagesThatBuildersMakeAreVerified(t *testing.T) {
	for _, pixels := range []int{0, 1, 2, 3, 4, 5, 7, 100, 100_000} {
		for name := range 9 {
			if err := verify(picture(strings.Repeat("n", name), pixels).FinishedBytes()); err != nil {
				t.Errorf("%d pixels: %v", pixels, err)
			}
		}
	}
}

// With any byte changed, or cut off anywhere, a message is refused or can be read without a panic.
func TestNoChangeOfAByteMakesAVerifiedMessagePanic(t *testing.T) {
	needs.Time(t)
	good := picture("good", 10).FinishedBytes()
	refused := 0
	for i := range good {
		for _, x := range []byte{0, 4, 0x7f, 0xff, good[i] + 1, good[i] - 1} {
			b := slices.Clone(good)
			b[i] = x
			if !readIfVerified(b) {
				refused++
			}
		}
		if readIfVerified(good[:i]) {
			t.Errorf("the first %d of %d bytes are verified", i, len(good))
		}
	}
	if refused < len(good) {
		t.Errorf("only %d of %d changes are refused", refused, 6*len(good))
	}
}

// The work for a message is bounded by its length, however it shares its tables.
func TestAMessageThatSharesItsTablesIsBounded(t *testing.T) {
	shared := func(levels, each int) []byte {
		b := flatbuffers.NewBuilder(0)
		name := b.CreateString("x")
		var last flatbuffers.UOffsetT
		for i := range levels {
			var parts flatbuffers.UOffsetT
			if i > 0 {
				b.StartVector(4, each, 4)
				for range each {
					b.PrependUOffsetT(last)
				}
				parts = b.EndVector(each)
			}
			store.PictureStart(b)
			store.PictureAddName(b, name)
			if i > 0 {
				store.PictureAddParts(b, parts)
			}
			last = store.PictureEnd(b)
		}
		b.Finish(last)
		return b.FinishedBytes()
	}
	if err := verify(shared(2, 1000)); err != nil {
		t.Errorf("a message in which one table is used a thousand times: %v", err)
	}
	if err := verify(shared(20, 10)); err == nil || !strings.Contains(err.Error(), "shares its tables") {
		t.Errorf("a message of %d bytes with 10^19 tables: %v", len(shared(20, 10)), err)
	}
	if err := verify(shared(60, 1)); err != nil {
		t.Errorf("tables 60 deep: %v", err)
	}
	if err := verify(shared(70, 1)); err == nil || !strings.Contains(err.Error(), "deep") {
		t.Errorf("tables 70 deep: %v", err)
	}
}

func TestWhatIsWrongIsNamed(t *testing.T) {
	good := picture("good", 10).FinishedBytes()
	change := func(f func(b []byte)) []byte {
		b := slices.Clone(good)
		f(b)
		return b
	}
	root := int(binary.LittleEndian.Uint32(good))
	noName := flatbuffers.NewBuilder(0)
	store.PictureStart(noName)
	noName.Finish(store.PictureEnd(noName))
	noType := flatbuffers.NewBuilder(0)
	name := noType.CreateString("n")
	store.SizeStart(noType)
	size := store.SizeEnd(noType)
	store.PictureStart(noType)
	store.PictureAddName(noType, name)
	store.PictureAddNote(noType, size)
	noType.Finish(store.PictureEnd(noType))
	for words, b := range map[string][]byte{
		"beyond its 0":                      {},
		"the offset at 0 is":                change(func(b []byte) { binary.LittleEndian.PutUint32(b, 1<<31) }),
		"should be at a multiple":           change(func(b []byte) { b[0]++ }),
		"its vtable is at":                  change(func(b []byte) { binary.LittleEndian.PutUint32(b[root:], 1<<30) }),
		"store.Picture has no name":         noName.FinishedBytes(),
		"the union has a value and no type": noType.FinishedBytes(),
	} {
		if err := verify(b); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("got %v, want %q", err, words)
		}
	}
}

func FuzzVerifiedMessagesCanBeRead(f *testing.F) {
	f.Add(picture("good", 10).FinishedBytes())
	f.Add(picture("", 0).FinishedBytes())
	f.Add(query("name", 3).FinishedBytes())
	f.Fuzz(func(t *testing.T, b []byte) { readIfVerified(b) })
}

func BenchmarkVerify(b *testing.B) {
	for name, m := range map[string][]byte{"1MB": picture("x", 1<<20).FinishedBytes(), "nested": picture("x", 0).FinishedBytes()} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := verify(m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
