package message_test

import (
	"errors"
	"testing"

	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/testing/callservice"
)

func textCodec() message.Codec { return codec.WrapV1(callservice.Text{}) }

func simple(n int) *testpb.SimpleRequest {
	return &testpb.SimpleRequest{ResponseSize: 7, Payload: &testpb.Payload{Body: make([]byte, n)}}
}

// forms returns v as a message in each of its forms.
func forms(t *testing.T, v any, c message.Codec) map[string]message.Message {
	t.Helper()
	live := message.Live(v, c)
	var captured message.Message
	if err := live.Capture(&captured); err != nil {
		t.Fatal(err)
	}
	b, err := live.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	half := len(b) / 2
	return map[string]message.Message{
		"live":     message.Live(v, c),
		"captured": captured,
		"encoded":  message.Encoded(mem.BufferSlice{mem.SliceBuffer(b[:half]), mem.SliceBuffer(b[half:])}),
	}
}

func TestMessageDecodesFromEachForm(t *testing.T) {
	want := simple(100)
	for name, m := range forms(t, want, codec.Proto()) {
		t.Run(name, func(t *testing.T) {
			got := &testpb.SimpleRequest{FillUsername: true} // which decoding resets
			to := sink(got)
			if err := m.DecodeInto(&to); err != nil || !proto.Equal(got, want) {
				t.Errorf("%v, %v", got, err)
			}
			m.Free()
			m.Free() // does nothing more
		})
	}
}

func TestMessageSizes(t *testing.T) {
	v := simple(100)
	for name, m := range forms(t, v, codec.Proto()) {
		n, err := m.Size()
		b, appendErr := m.Append([]byte("x"))
		if err != nil || appendErr != nil || n != proto.Size(v) || len(b) != n+1 {
			t.Errorf("%s: Size %d, Append of %d bytes, want %d; %v, %v", name, n, len(b)-1, proto.Size(v), err, appendErr)
		}
		if name != "live" && m.Bound() < n {
			t.Errorf("%s: the bound %d is below the size %d", name, m.Bound(), n)
		}
	}
}

func TestAppendWithinIsForWhatFits(t *testing.T) {
	v, s := simple(100), "text"
	encoded, err := proto.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		m    message.Message
		room int
		want bool
	}{
		"fits":                  {message.Live(v, codec.Proto()), len(encoded), true},
		"does not fit":          {message.Live(v, codec.Proto()), len(encoded) / 2, false},
		"encoded":               {message.Encoded(mem.BufferSlice{mem.SliceBuffer(encoded)}), len(encoded), true},
		"encoded, too large":    {message.Encoded(mem.BufferSlice{mem.SliceBuffer(encoded)}), len(encoded) - 1, false},
		"a codec that does not": {message.Live(&s, textCodec()), 1 << 10, false},
	} {
		b, ok := c.m.AppendWithin(append(make([]byte, 0, c.room+1), 'x'))
		want := []byte("x")
		if c.want {
			want = append(want, encoded...)
		}
		if ok != c.want || string(b) != string(want) {
			t.Errorf("%s: AppendWithin = %x, %t; want %x", name, b, ok, want)
		}
	}
}

// TestLimitIsOfTheEncodedSize: a bound may be larger than the size. The limit applies to
// the size.
func TestLimitIsOfTheEncodedSize(t *testing.T) {
	// The bound of maps and repeated fields is larger than their size.
	many, err := structpb.NewStruct(map[string]any{"k": []any{1, "two", true, nil}, "empty": ""})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []proto.Message{simple(0), simple(100), many, &testpb.SimpleRequest{}, wrapperspb.Int64(-1)} {
		size := proto.Size(v)
		for name, m := range forms(t, v, codec.Proto()) {
			to := sink(v.ProtoReflect().New().Interface())
			to.Limit = size
			if err := m.DecodeInto(&to); err != nil {
				t.Errorf("%s of %d bytes with a limit of as many: %v", name, size, err)
			}
		}
		if size == 0 {
			continue
		}
		for name, m := range forms(t, v, codec.Proto()) {
			to := sink(v.ProtoReflect().New().Interface())
			to.Limit = size - 1
			var refused *message.RecvError
			if err := m.DecodeInto(&to); !errors.As(err, &refused) || refused.Size != size || refused.Limit != size-1 || refused.Err != nil {
				t.Errorf("%s of %d bytes with a limit of one less: %v", name, size, err)
			}
		}
	}
}

// counted counts the messages that a codec makes.
type counted struct {
	message.Codec
	made *int
}

func (c counted) New(src any) any {
	*c.made++
	return c.Codec.New(src)
}

func TestCapturedMessageIsIndependent(t *testing.T) {
	v := simple(4)
	c := counted{codec.Proto(), new(int)}
	live := message.Live(v, c)
	var m message.Message
	for range 3 { // the second and third Capture reuse the emptied message
		if err := live.Capture(&m); err != nil {
			t.Fatal(err)
		}
		v.Payload.Body[0]++
		v.ResponseSize++
		got := new(testpb.SimpleRequest)
		to := message.Sink{Dst: got, Codec: c, Limit: 100}
		if err := m.DecodeInto(&to); err != nil {
			t.Fatal(err)
		}
		if got.Payload.Body[0] != v.Payload.Body[0]-1 || got.ResponseSize != v.ResponseSize-1 {
			t.Errorf("the sender's later changes arrived: %v", got)
		}
		if n, err := m.Size(); n != 0 || err != nil {
			t.Errorf("%d bytes are left, %v", n, err)
		}
		got.Payload.Body[0] = 99
		if v.Payload.Body[0] == 99 {
			t.Error("the receiver shares memory with the sender")
		}
	}
	if *c.made != 1 {
		t.Errorf("%d messages were made to capture one at a time", *c.made)
	}
}

func TestCaptureIntoAMessageOfAnotherType(t *testing.T) {
	var m message.Message
	first := message.Live(wrapperspb.String("first"), codec.Proto())
	if err := first.Capture(&m); err != nil {
		t.Fatal(err)
	}
	second := message.Live(simple(4), codec.Proto())
	if err := second.Capture(&m); err != nil {
		t.Fatal(err)
	}
	got := new(testpb.SimpleRequest)
	to := sink(got)
	if err := m.DecodeInto(&to); err != nil || !proto.Equal(got, simple(4)) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestCaptureAsBytesWhereNothingElseWillDo(t *testing.T) {
	v := "hello"
	live := message.Live(&v, textCodec())
	var m, again message.Message
	if err := live.Capture(&m); err != nil {
		t.Fatal(err)
	}
	v = "changed"
	if err := m.Capture(&again); err != nil { // bytes are captured already
		t.Fatal(err)
	}
	var got string
	to := message.Sink{Dst: &got, Codec: textCodec(), Limit: 5}
	if err := again.DecodeInto(&to); err != nil || got != "hello" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestReceiverDecodesWithItsOwnCodec(t *testing.T) {
	for name, m := range forms(t, wrapperspb.String("hello"), codec.Proto()) {
		var got string
		to := message.Sink{Dst: &got, Codec: textCodec(), Limit: 100}
		if err := m.DecodeInto(&to); err != nil || got != "\x0a\x05hello" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	for name, m := range forms(t, wrapperspb.String("hello"), codec.Proto()) {
		got := new(wrapperspb.BytesValue)
		to := sink(got)
		if err := m.DecodeInto(&to); err != nil || string(got.Value) != "hello" {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

func TestNilIsAnEmptyMessage(t *testing.T) {
	for name, m := range forms(t, nil, codec.Proto()) {
		got := wrapperspb.String("old")
		to := sink(got)
		if err := m.DecodeInto(&to); err != nil || got.Value != "" {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

func TestMessageThatCannotBeEncoded(t *testing.T) {
	unspeakable := "unspeakable"
	for name, m := range map[string]message.Message{
		"protobuf":    message.Live(wrapperspb.String("\xff"), codec.Proto()),
		"no protobuf": message.Live(42, codec.Proto()),
		"text":        message.Live(&unspeakable, textCodec()),
	} {
		t.Run(name, func(t *testing.T) {
			isSendError := func(what string, err error) {
				t.Helper()
				var send *message.SendError
				var recv *message.RecvError
				if !errors.As(err, &send) || send.Unwrap() == nil || errors.As(err, &recv) {
					t.Errorf("%s returns %v, want a SendError", what, err)
				}
			}
			isSendError("Capture", m.Capture(new(message.Message)))
			_, err := m.Append(nil)
			isSendError("Append", err)
			var dst any = wrapperspb.String("untouched")
			if name == "text" {
				dst = new(string)
			}
			to := sink(dst)
			isSendError("DecodeInto", m.DecodeInto(&to))
			if v, ok := dst.(*wrapperspb.StringValue); ok && v.Value != "untouched" {
				t.Errorf("the receiver has %q", v.Value)
			}
		})
	}
}

func TestMessageThatCannotBeDecoded(t *testing.T) {
	illegible := "illegible"
	for name, m := range forms(t, &illegible, textCodec()) {
		to := message.Sink{Dst: new(string), Codec: textCodec(), Limit: 100}
		var recv *message.RecvError
		if err := m.DecodeInto(&to); !errors.As(err, &recv) || recv.Err == nil {
			t.Errorf("%s: %v, want a RecvError", name, err)
		}
	}
}

func TestEncodedMessageIsFreedOnce(t *testing.T) {
	pool := &counting{}
	b := make([]byte, 4096)
	m := message.Encoded(mem.BufferSlice{mem.NewBuffer(&b, pool)})
	to := message.Sink{Dst: new(string), Codec: textCodec(), Limit: 1 << 20}
	if err := m.DecodeInto(&to); err != nil {
		t.Fatal(err)
	}
	if pool.puts != 0 {
		t.Error("DecodeInto freed it")
	}
	m.Free()
	m.Free()
	if pool.puts != 1 {
		t.Errorf("it was freed %d times", pool.puts)
	}
}

// counting is a pool that counts the returned buffers.
type counting struct{ puts int }

func (c *counting) Get(n int) *[]byte { b := make([]byte, n); return &b }
func (c *counting) Put(*[]byte)       { c.puts++ }

func sink(dst any) message.Sink { return message.Sink{Dst: dst, Codec: codec.Proto(), Limit: 1 << 20} }
