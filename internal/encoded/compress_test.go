package encoded

import (
	"bytes"
	"testing"

	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
)

// A sizer is a codec that counts how often it is asked for a size.
type sizer struct {
	link.Codec
	asked *int
}

func (c sizer) Size(v any) (int, error) {
	*c.asked++
	return c.Codec.Size(v)
}

func (c sizer) AppendAtOnce(b []byte, v any) ([]byte, bool) {
	return c.Codec.(interface {
		AppendAtOnce(b []byte, v any) ([]byte, bool)
	}).AppendAtOnce(b, v)
}

// What waits to be written holds no more memory than it needs, though the size of a small
// message is not computed.
func TestSmallMessagesAreEncodedWithoutTheirSize(t *testing.T) {
	for size, want := range map[int]int{0: 0, 20: 0, 100: 0, smallMessage / 2: 0, 2 * smallMessage: 1} {
		v := &testpb.Payload{Body: bytes.Repeat([]byte("x"), size)}
		whole, err := proto.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		asked := 0
		m := link.Live(v, sizer{codec.Proto(), &asked})
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
