package codec

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

	"github.com/nearcall/nearcall/internal/message"
)

// text is an encoding.Codec for strings.
type text struct{ name string }

func (c text) Name() string { return c.name }

func (c text) Marshal(v any) ([]byte, error) {
	s, ok := v.(*string)
	if !ok {
		return nil, fmt.Errorf("text: %T", v)
	}
	return []byte(*s), nil
}

func (c text) Unmarshal(data []byte, v any) error {
	*v.(*string) = string(data)
	return nil
}

// textV2 is text as an encoding.CodecV2.
type textV2 struct {
	text
	_ []int // not comparable
}

func (c textV2) Marshal(v any) (mem.BufferSlice, error) {
	b, err := c.text.Marshal(v)
	if err != nil {
		return nil, err
	}
	return mem.BufferSlice{mem.SliceBuffer(b[:1]), mem.SliceBuffer(b[1:])}, nil
}

func (c textV2) Unmarshal(data mem.BufferSlice, v any) error {
	return c.text.Unmarshal(data.Materialize(), v)
}

func init() {
	encoding.RegisterCodec(text{"codectest-v1"})
	encoding.RegisterCodecV2(&textV2{text: text{"codectest-v2"}})
}

func TestGetProto(t *testing.T) {
	for _, name := range []string{"", "proto", "PROTO"} {
		if c, ok := Get(name); !ok || c != Proto() {
			t.Errorf("Get(%q) = %v, %v", name, c, ok)
		}
	}
	if c := WrapV2(encoding.GetCodecV2("proto")); c != Proto() {
		t.Errorf("WrapV2 = %v", c)
	}
	if Proto().Name() != "proto" {
		t.Errorf("Name = %q", Proto().Name())
	}
}

func TestGetUnregistered(t *testing.T) {
	if c, ok := Get("codectest-none"); ok || c != nil {
		t.Errorf("Get = %v, %v", c, ok)
	}
}

func TestUsersCodecs(t *testing.T) {
	for _, c := range []Codec{
		mustGet(t, "codectest-v1"),
		mustGet(t, "codectest-v2"),
		WrapV1(text{"forced"}),
		WrapV2(textV2{text: text{"forced"}}),
	} {
		t.Run(c.Name(), func(t *testing.T) {
			src, dst := "some text", "other"
			if n, err := c.Size(&src); n != len(src) || err != nil {
				t.Errorf("Size = %d, %v", n, err)
			}
			b, err := c.Append([]byte("> "), &src)
			if !bytes.Equal(b, []byte("> some text")) || err != nil {
				t.Errorf("Append = %q, %v", b, err)
			}
			if _, ok, err := c.Copy(&dst, &src); ok || err != nil || dst != "other" {
				t.Errorf("Copy = %v, %v", ok, err)
			}
			if err := decode(c, mem.BufferSlice{mem.SliceBuffer(b[2:])}, &dst); err != nil || dst != src {
				t.Errorf("Decode makes %q, %v", dst, err)
			}
			if n, err := c.Size(nil); n != 0 || err != nil {
				t.Errorf("Size of nil = %d, %v", n, err)
			}
			if b, err := c.Append(nil, nil); b != nil || err != nil {
				t.Errorf("Append of nil = %q, %v", b, err)
			}
			if _, err := c.Append(nil, errors.New("x")); err == nil {
				t.Error("Append hides the error of Marshal")
			}
			if _, err := c.Size(errors.New("x")); err == nil {
				t.Error("Size hides the error of Marshal")
			}
			if c.New(&src) != nil || c.Move(&dst, &src) {
				t.Error("a codec of bytes moves")
			}
		})
	}
}

// hoarder is a codec that keeps what it unmarshals.
type hoarder struct{ has *[]byte }

func (hoarder) Name() string { return "hoarder" }

func (hoarder) Marshal(any) ([]byte, error) { return nil, nil }

func (h hoarder) Unmarshal(data []byte, _ any) error {
	*h.has = data
	return nil
}

// hoarderV2 is hoarder as an encoding.CodecV2.
type hoarderV2 struct{ hoarder }

func (hoarderV2) Marshal(any) (mem.BufferSlice, error) { return nil, nil }

func (h hoarderV2) Unmarshal(data mem.BufferSlice, v any) error {
	data.Ref()
	return h.hoarder.Unmarshal(data[0].ReadOnlyData(), v)
}

// TestWhatACodecKeepsDoesNotChange: it is a copy, unless it stays and the codec's contract is to
// count references.
func TestWhatACodecKeepsDoesNotChange(t *testing.T) {
	var has []byte
	for name, test := range map[string]struct {
		c     Codec
		keeps bool
	}{
		"v1": {WrapV1(hoarder{&has}), false},
		"v2": {WrapV2(hoarderV2{hoarder{&has}}), true},
	} {
		for _, stay := range []bool{false, true} {
			b := []byte("some text")
			kept, err := test.c.Decode(message.Data{Bytes: b, Stay: stay}, nil)
			if want := test.keeps && stay; err != nil || kept != want || (&has[0] == &b[0]) != want {
				t.Errorf("%s: of bytes that stay (%t) it keeps %t, %v", name, stay, kept, err)
			}
			if string(has) != "some text" {
				t.Errorf("%s: it has %q", name, has)
			}
		}
		if got := test.c.KeepsReferences(); got != test.keeps {
			t.Errorf("%s: KeepsReferences is %t", name, got)
		}
	}
}

func TestEqualityOfUsersCodecs(t *testing.T) {
	for _, name := range []string{"codectest-v1", "codectest-v2"} {
		if a, b := mustGet(t, name), mustGet(t, name); a != b {
			t.Errorf("%s is not the same twice", name)
		}
	}
	if mustGet(t, "codectest-v1") == mustGet(t, "codectest-v2") {
		t.Error("different codecs are equal")
	}
	incomparable := textV2{text: text{"x"}}
	if WrapV2(incomparable) == WrapV2(incomparable) {
		t.Error("codecs that cannot be compared are equal")
	}
	for _, c := range []Codec{Proto(), JSON(), mustGet(t, "codectest-v1"), mustGet(t, "codectest-v2"), WrapV2(incomparable)} {
		if Unshared(c) != c || Unshared(Sharing(c)) != c {
			t.Errorf("%s is another codec after it was shared", c.Name())
		}
	}
}

func mustGet(t *testing.T, name string) Codec {
	t.Helper()
	c, ok := Get(name)
	if !ok {
		t.Fatalf("no codec %q", name)
	}
	return c
}
