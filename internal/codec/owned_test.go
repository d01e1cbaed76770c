package codec

import (
	"bytes"
	"strings"
	"testing"
	"unsafe"

	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nearcall/nearcall/internal/codec/internal/testpb"
)

// within reports whether p points into b.
func within(p *byte, b []byte) bool {
	at, from := uintptr(unsafe.Pointer(p)), uintptr(unsafe.Pointer(&b[0]))
	return at >= from && at < from+uintptr(len(b))
}

func TestAMessageThatIsMostlyOneFieldKeepsItsBytes(t *testing.T) {
	const size = 100_000
	text, body := strings.Repeat("x", size), bytes.Repeat([]byte{1}, size)
	half := body[:size/2]
	for name, c := range map[string]struct {
		m     proto.Message
		first func(proto.Message) *byte // of the field; nil if nothing is kept
	}{
		"bytes in a message": {payload(size), func(m proto.Message) *byte { return &m.(*grpc_testing.SimpleRequest).Payload.Body[0] }},
		"a string": {wrapperspb.String(text), func(m proto.Message) *byte {
			return unsafe.StringData(m.(*wrapperspb.StringValue).Value)
		}},
		"an optional string": {&testpb.Two{OptString: &text}, func(m proto.Message) *byte { return unsafe.StringData(m.(*testpb.Two).GetOptString()) }},
		"optional bytes":     {&testpb.Two{OptBytes: body}, func(m proto.Message) *byte { return &m.(*testpb.Two).OptBytes[0] }},
		"in a list":          {&testpb.Two{RepBytes: [][]byte{{1}, body}}, func(m proto.Message) *byte { return &m.(*testpb.Two).RepBytes[1][0] }},
		"beside others": {&grpc_testing.SimpleRequest{ResponseSize: 5, Payload: &grpc_testing.Payload{Type: 7, Body: body}, FillUsername: true}, func(m proto.Message) *byte {
			return &m.(*grpc_testing.SimpleRequest).Payload.Body[0]
		}},
		"two halves":    {&testpb.Two{RepBytes: [][]byte{half, half}}, nil},
		"invalid UTF-8": {withUnknown(&wrapperspb.StringValue{}, "\x0a\xa0\x8d\x06"+strings.Repeat("\xff", size)), nil},
	} {
		t.Run(name, func(t *testing.T) {
			programOf(c.m).decoding.skip.Store(0)
			b := must(proto.Marshal(c.m))
			got := c.m.ProtoReflect().Type().New().Interface()
			kept, err := decodeOwned(b, got)
			if want := c.first != nil; kept != want {
				t.Fatalf("kept is %v, want %v (%v)", kept, want, err)
			}
			if !kept {
				return
			}
			if !proto.Equal(got, c.m) {
				t.Error("the message is another")
			}
			if !within(c.first(got), b) {
				t.Error("the field was copied")
			}
		})
	}
}

func TestAFieldThatIsKeptHasNoRoom(t *testing.T) {
	b := must(proto.Marshal(&grpc_testing.SimpleRequest{Payload: &grpc_testing.Payload{Body: make([]byte, 1000)}, FillUsername: true}))
	got := new(grpc_testing.SimpleRequest)
	if kept, err := decodeOwned(b, got); !kept || err != nil {
		t.Fatalf("kept is %v, %v", kept, err)
	}
	if body := got.Payload.Body; cap(body) != len(body) {
		t.Errorf("%d bytes have room for %d: to append would change what follows", len(body), cap(body))
	}
}

func TestAMessageThatFailsKeepsNothing(t *testing.T) {
	b := append(must(proto.Marshal(payload(1000))), 0xff)
	got := new(grpc_testing.SimpleRequest)
	if kept, err := decodeOwned(b, got); kept || err == nil {
		t.Errorf("kept is %v, %v", kept, err)
	}
	if kept, err := decodeOwned(nil, nil); kept || err == nil {
		t.Errorf("into nothing: kept is %v, %v", kept, err)
	}
}
