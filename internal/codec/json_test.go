package codec

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func TestJSONIsProtobufsFormat(t *testing.T) {
	c := JSON()
	if c.Name() != "json" || c != JSON() {
		t.Errorf("%s, equal to itself: %t", c.Name(), c == JSON())
	}
	b, err := c.Append([]byte("x"), wrapperspb.String("a"))
	if err != nil || string(b) != `x"a"` {
		t.Errorf("%s, %v", b, err)
	}
	got := wrapperspb.String("old")
	if err := decode(c, mem.BufferSlice{mem.SliceBuffer(`"ne`), mem.SliceBuffer(`w"`)}, got); err != nil || got.Value != "new" {
		t.Errorf("%v, %v", got, err)
	}
	for text, want := range map[string]string{"": "an empty message is {}", "7": "no JSON of google.protobuf.ListValue", `[1`: "unexpected EOF"} {
		var format *FormatError
		if err := decode(c, mem.BufferSlice{mem.SliceBuffer(text)}, &structpb.ListValue{}); !errors.As(err, &format) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want a FormatError with %q", text, err, want)
		}
	}
	for _, v := range []any{7, nil} {
		if err := decode(c, nil, v); err == nil {
			t.Errorf("%v is decoded into", v)
		}
	}
	if _, err := c.Append(nil, 7); err == nil {
		t.Error("a number is encoded")
	}
}
