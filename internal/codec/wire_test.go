package codec

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nearcall/nearcall/internal/codec/internal/testpb"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

// checkEncoding reports how encoding m differs from what protobuf-go does, if it does.
func checkEncoding(m proto.Message) error {
	v := passed(m)
	programOf(v).encoding.skip.Store(0)
	n, sizeErr := Proto().Size(v)
	// The first is short of room, the second is encoded in one go if it is small, and
	// the third has room for large messages.
	prefix := []byte("prefix")
	exact, exactErr := appendTried(slices.Clip(prefix), v)
	short, shortErr := appendTried(append(make([]byte, 0, 20), prefix...), v)
	roomy, roomyErr := appendTried(append(make([]byte, 0, 1<<16), prefix...), v)
	live := message.Live(v, Proto())
	programOf(v).encoding.skip.Store(0)
	sized, sizedErr := live.Sized()
	if got := sized.Bound(); got != 0 && got != n || sizedErr != nil {
		return fmt.Errorf("Sized has %d bytes, %v; want %d", got, sizedErr, n)
	}
	after, afterErr := sized.Append(slices.Clip(prefix))
	if unsent, ok := afterErr.(*message.SendError); ok {
		afterErr = unsent.Err
	}

	want, err := proto.Marshal(m)
	if size := proto.Size(m); n != size || sizeErr != nil {
		return fmt.Errorf("Size = %d, %v; want %d", n, sizeErr, size)
	}
	for _, got := range []struct {
		b   []byte
		err error
	}{{exact, exactErr}, {short, shortErr}, {roomy, roomyErr}, {after, afterErr}} {
		if (got.err == nil) != (err == nil) || fmt.Sprint(got.err) != fmt.Sprint(err) && !encodingVaries(m.ProtoReflect()) {
			return fmt.Errorf("Append fails with %v, want %v", got.err, err)
		}
		if err != nil {
			continue
		}
		b, ok := bytes.CutPrefix(got.b, prefix)
		if !ok || len(b) != n {
			return fmt.Errorf("Append = %x, without the prefix or not of %d bytes", got.b, n)
		}
		if err := sameEncoding(m, b, want); err != nil {
			return err
		}
	}
	return nil
}

// appendTried is Append by a program, if there is one, whatever was encoded before.
func appendTried(b []byte, v any) ([]byte, error) {
	programOf(v).encoding.skip.Store(0)
	return Proto().Append(b, v)
}

// sameEncoding compares two encodings of m, which differ where they may.
func sameEncoding(m proto.Message, got, want []byte) error {
	if bytes.Equal(got, want) {
		return nil
	}
	if !encodingVaries(m.ProtoReflect()) {
		return fmt.Errorf("encoding is\n%x, want\n%x", got, want)
	}
	g, gotErr := deterministic(m, got)
	w, wantErr := deterministic(m, want)
	if !bytes.Equal(g, w) || (gotErr == nil) != (wantErr == nil) {
		return fmt.Errorf("encoding is\n%x, %v; want\n%x, %v", g, gotErr, w, wantErr)
	}
	return nil
}

// deterministic decodes b, an encoding of m, and encodes it with entries in order.
func deterministic(m proto.Message, b []byte) ([]byte, error) {
	d := m.ProtoReflect().Type().New().Interface()
	if err := proto.Unmarshal(b, d); err != nil {
		return nil, err
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(d)
}

// encodingVaries reports whether m has a map with several entries, which can have any order, or a map
// of floats: protobuf-go makes signalling NaNs in these quiet, and programs leave them as they are.
func encodingVaries(m protoreflect.Message) (found bool) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap():
			found = v.Map().Len() > 1 || fd.MapValue().Kind() == protoreflect.FloatKind
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				found = found || fd.MapValue().Message() != nil && encodingVaries(v.Message())
				return !found
			})
		case fd.Message() == nil:
		case fd.IsList():
			for i := range v.List().Len() {
				found = found || encodingVaries(v.List().Get(i).Message())
			}
		default:
			found = encodingVaries(v.Message())
		}
		return !found
	})
	return found
}

// checkDecoding reports how decoding b into a message of type mt differs from what
// protobuf-go does, if it does.
func checkDecoding(mt protoreflect.MessageType, b []byte) error {
	got, want := mt.New().Interface(), mt.New().Interface()
	if err := sameDecoding(got, want, b); err != nil {
		return err
	}
	if err := sameDecoding(got, want, b); err != nil { // into messages that are not empty
		return err
	}
	if err := sameDecodingBy(got, want, b, decodeOwned); err != nil || proto.Unmarshal(b, want) != nil {
		return err
	}
	if err := checkEncoding(got); err != nil {
		return fmt.Errorf("what was decoded from %x: %w", b, err)
	}
	return checkMove(got, want)
}

func sameDecoding(got, want proto.Message, b []byte) error {
	return sameDecodingBy(got, want, b, func(b []byte, v any) (kept bool, err error) { return false, decodeBytes(b, v) })
}

func sameDecodingBy(got, want proto.Message, b []byte, decode func(b []byte, v any) (kept bool, err error)) error {
	programOf(passed(got)).decoding.skip.Store(0)
	mine := bytes.Clone(b)
	kept, gotErr := decode(mine, passed(got))
	wantErr := proto.Unmarshal(b, want)
	if !bytes.Equal(mine, b) {
		return fmt.Errorf("decoding has changed the bytes")
	}
	if (gotErr == nil) != (wantErr == nil) || fmt.Sprint(gotErr) != fmt.Sprint(wantErr) && !encodingVaries(got.ProtoReflect()) {
		return fmt.Errorf("decoding %x fails with %v, want %v", b, gotErr, wantErr)
	}
	if gotErr != nil && !isOpen(got) {
		return nil // what protobuf-go leaves of a lazy message that it cannot decode cannot be read
	}
	if err := checkKept(got.ProtoReflect(), mine, kept); err != nil {
		return fmt.Errorf("decoding %x: %w", b, err)
	}
	for i := range mine {
		if !kept { // the message must not refer to it
			mine[i] += 101
		}
	}
	if !proto.Equal(got, want) {
		return fmt.Errorf("decoding %x makes\n%v, want\n%v", b, got, want)
	}
	if d := diff(got, want); isOpen(got) && d != "" {
		return fmt.Errorf("decoding %x differs in memory: %s", b, d)
	}
	return nil
}

// isOpen reports whether all that m holds has the open API, which diff understands.
func isOpen(m proto.Message) bool {
	t := reflect.TypeOf(m).Elem()
	for i := range t.NumField() {
		if strings.HasPrefix(t.Field(i).Name, "xxx_hidden_") {
			return false
		}
	}
	return t.Field(0).Name == "state" && t != reflect.TypeFor[testpb.Mixed]()
}

// woven returns a message of type mt made of random bytes.
func woven(r *rand.Rand, mt protoreflect.MessageType) proto.Message {
	weft := make([]byte, r.IntN(400))
	for i := range weft {
		weft[i] = byte(r.Uint32())
	}
	m := mt.New().Interface()
	(&weaver{bytes: weft}).message(m, 6)
	return m
}

// mutated returns b with a few random changes.
func mutated(r *rand.Rand, b, other []byte) []byte {
	b = bytes.Clone(b)
	for range r.IntN(4) {
		switch i := r.IntN(len(b) + 1); r.IntN(5) {
		case 0:
			b = b[:i]
		case 1:
			b = append(b, other...)
		case 2:
			b = slices.Insert(b, i, byte(r.Uint32()))
		default:
			if i < len(b) {
				b[i] ^= 1 << r.IntN(8)
			}
		}
	}
	return b
}

func TestProgramsEncodeAndDecodeAsProtobufDoes(t *testing.T) {
	needs.Time(t)
	rounds := 150
	if testing.Short() {
		rounds = 50
	}
	r := rand.New(rand.NewPCG(1, 2))
	for _, m := range fuzzed {
		mt := m.ProtoReflect().Type()
		var other []byte
		for range rounds {
			m := woven(r, mt)
			if err := checkEncoding(m); err != nil {
				t.Fatalf("%T: %v\n%v", m, err, m)
			}
			b, _ := proto.MarshalOptions{AllowPartial: true}.Marshal(m)
			for range 4 {
				if err := checkDecoding(mt, mutated(r, b, other)); err != nil {
					t.Fatalf("%T: %v", m, err)
				}
			}
			other = b
		}
	}
}

// The descriptors of all files in this program are messages that people wrote.
func TestProgramsEncodeAndDecodeDescriptors(t *testing.T) {
	files := 0
	protoregistry.GlobalFiles.RangeFiles(func(fd protoreflect.FileDescriptor) bool {
		files++
		m := protodesc.ToFileDescriptorProto(fd)
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if err := checkEncoding(m); err != nil {
			t.Errorf("%s: %v", fd.Path(), err)
		}
		if err := checkDecoding(m.ProtoReflect().Type(), b); err != nil {
			t.Errorf("%s: %v", fd.Path(), err)
		}
		got := &descriptorpb.FileDescriptorProto{}
		if err := decodeBytes(b, got); err != nil || !proto.Equal(got, m) {
			t.Errorf("%s: decoded as\n%v, %v; want\n%v", fd.Path(), got, err, m)
		}
		return true
	})
	if files < 10 {
		t.Errorf("there are only %d files", files)
	}
}

func TestProgramsTakeWhatIsCommon(t *testing.T) {
	needs.Time(t)
	for name, m := range map[string]proto.Message{
		"nothing":              &testpb.Three{},
		"typed nil":            (*testpb.Three)(nil),
		"record":               record(),
		"nested record":        order(),
		"large payload":        payload(1 << 20),
		"many nested messages": nested(100),
		"maps of messages":     orders(200),
		"scalar maps":          &testpb.Maps{Uint32Sint32: map[uint32]int32{1: -1, 2: 2}, BoolBool: map[bool]bool{true: false}},
		"maps in maps":         &testpb.Maps{BoolMessage: map[bool]*testpb.Maps{false: {StringSint64: map[string]int64{"": 1}}, true: nil}},
		"struct":               must(structpb.NewStruct(map[string]any{"a": []any{1, "b", nil, true, map[string]any{"c": 0.5}}})),
		"descriptor":           fileDescriptor(),
		"proto2":               &testpb.Two{OptBytes: []byte{}, OptString: new("\xff"), RepSint64: []int64{-1, 1}, RepInt32: []int32{-1, 1}},
		"unknown fields":       withUnknown(&testpb.Three{OneBool: true}, unknowns[0]+unknowns[1]+unknowns[2]),
		"large field number":   &testpb.Three{Far: "far"},
		"wide lists":           &testpb.Three{RepInt64: numbers(5000), RepUint32: make([]uint32, 5000)},
	} {
		p := programOf(m)
		b, ok := p.appendTo(make([]byte, 0, 64), dataOf(m))
		if !ok {
			t.Errorf("%s: not encoded", name)
		}
		p.decoding.skip.Store(0)
		if !p.replaceBy(p.newMessage(), b, nil) {
			t.Errorf("%s: not decoded", name)
		}
		if err := checkEncoding(m); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := checkDecoding(m.ProtoReflect().Type(), b); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// nested returns a large message with messages that can contain others, and with some
// that cannot.
func nested(n int) proto.Message {
	m := &testpb.Three{}
	for i := range n {
		text := strings.Repeat("x", 3*i)
		m.RepMessage = append(m.RepMessage, &testpb.Three{
			OneTime:    &timestamppb.Timestamp{Seconds: int64(i)},
			OneMessage: &testpb.Three{OneString: text, Choice: &testpb.Three_ChoiceMessage{ChoiceMessage: &testpb.Three{OneString: text}}},
		})
	}
	return m
}

func TestProgramsLeaveMessagesToProtobuf(t *testing.T) {
	opaque := &testpb.Opaque{}
	opaque.SetText("text")
	extended := &testpb.Extendable{}
	proto.SetExtension(extended, testpb.E_ExtString, "text")
	for name, m := range map[string]proto.Message{
		"opaque":               opaque,
		"opaque field":         &testpb.Mixed{Opaque: opaque},
		"opaque in a map":      &testpb.Mixed{ByName: map[string]*testpb.Opaque{"": opaque}},
		"extension":            extended,
		"nested extension":     &testpb.Two{OptExtendable: extended},
		"required":             newRequired(),
		"not set":              &testpb.Required{},
		"typed nil":            (*testpb.Required)(nil),
		"required in a list":   &testpb.RequiredMessage{Message: newRequired(), Messages: []*testpb.Required{newRequired()}},
		"required in a map":    &testpb.Two{MapStringRequired: map[string]*testpb.Required{"": newRequired()}},
		"required in a oneof":  &testpb.Two{Choice: &testpb.Two_OneRequired{OneRequired: newRequired()}},
		"group":                &testpb.Two{Optgroup: &testpb.Two_OptGroup{}},
		"groups":               &testpb.Two{Repgroup: []*testpb.Two_RepGroup{{}}},
		"group in a oneof":     &testpb.Two{Choice: &testpb.Two_Onegroup{Onegroup: &testpb.Two_OneGroup{}}},
		"delimited":            editions(&testpb.Editions{Delimited: editions(nil)}),
		"deep":                 deep(mostNested + 1),
		"UTF-8":                &testpb.Three{OneString: "\xff"},
		"UTF-8 with presence":  &testpb.Three{OptString: new("\xff")},
		"UTF-8 of an element":  &testpb.Three{RepString: []string{"", "\xff"}},
		"UTF-8 of a key":       &testpb.Three{MapStringMessage: map[string]*testpb.Three{"\xff": nil}},
		"UTF-8 of a map value": &testpb.Three{MapInt32String: map[int32]string{1: "\xff"}},
		"UTF-8 in a oneof":     &testpb.Three{Choice: &testpb.Three_ChoiceString{ChoiceString: "\xff"}},
	} {
		if p := programOf(m); !p.leftToProtobufGo() {
			if b, ok := p.appendTo(make([]byte, 0, 64), dataOf(m)); ok {
				t.Errorf("%s: encoded as %x", name, b)
			}
		}
		if err := checkEncoding(m); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		b, _ := proto.MarshalOptions{AllowPartial: true}.Marshal(m)
		if err := checkDecoding(m.ProtoReflect().Type(), b); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestProgramsDecodeAsProtobufDoes(t *testing.T) {
	for name, b := range map[string]string{
		"nothing":                         "",
		"a field twice":                   "\x10\x01\x10\x02",
		"a message in two parts":          "\x8a\x01\x02\x10\x01\x8a\x01\x02\x18\x02",
		"a oneof twice":                   "\x90\x05\x07\x90\x05\x00",
		"a oneof, then another":           "\x90\x05\x07\xaa\x05\x01x",
		"a oneof message in two parts":    "\xba\x05\x02\x10\x01\xba\x05\x02\x18\x02",
		"bytes, then none":                "\x7a\x01x\x7a\x00",
		"packed where it need not be":     "\xe2\x02\x02\x01\x02",
		"not packed where it should be":   "\xd0\x02\x01\xd2\x02\x02\x02\x03\xd0\x02\x04",
		"a list of no elements":           "\xd2\x02\x00",
		"half an element":                 "\xd2\x02\x01\x80",
		"half a fixed element":            "\xea\x02\x03\x01\x02\x03",
		"another wire type":               "\x12\x01\x01\x15\x00\x00\x00\x00",
		"another wire type of a oneof":    "\x92\x05\x01\x01",
		"another wire type of a map":      "\xe8\x03\x01",
		"a varint of ten bytes":           "\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
		"a varint of eleven bytes":        "\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x80\x01",
		"a varint of more than 64 bits":   "\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
		"a varint longer than needed":     "\x90\x00\x81\x00",
		"a bool that is not 0 or 1":       "\x08\x80\x80\x80\x80\x80\x80\x80\x80\x40",
		"field number 0":                  "\x00\x00",
		"a field number that is too high": "\x80\x80\x80\x80\x80\x01\x00",
		"wire type 6":                     "\x16",
		"the end of a group":              "\x14",
		"an unknown group":                "\xcb\x3e\x08\x01\xcc\x3e",
		"an unknown group without an end": "\xcb\x3e\x08\x01",
		"an unknown field, tag too long":  "\xca\xbe\x00\x01a",
		"an unknown field cut short":      "\xca\x3e\x03a",
		"a length beyond the end":         "\x72\x02x",
		"a length beyond 64 bits":         "\x72\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
		"UTF-8":                           "\x72\x01\xff",
		"UTF-8 of a key":                  "\xea\x03\x03\x0a\x01\xff",
		"an entry without key and value":  "\xea\x03\x00",
		"an entry with two keys":          "\xea\x03\x06\x0a\x01a\x0a\x01b",
		"an entry with an unknown field":  "\xea\x03\x05\x0a\x01a\x18\x01",
		"an entry backwards":              "\xea\x03\x06\x12\x01v\x0a\x01k",
		"an entry of bytes without value": "\xf2\x03\x03\x0a\x01a",
		"an entry, message in two parts":  "\xba\x04\x08\x12\x02\x10\x01\x12\x02\x18\x02",
		"an entry without message":        "\xba\x04\x00",
		"an entry cut short":              "\xea\x03\x03\x0a\x02a",
		"entries with the same key":       "\xea\x03\x03\x0a\x01a\xea\x03\x06\x0a\x01a\x12\x01b",
	} {
		if err := checkDecoding((&testpb.Three{}).ProtoReflect().Type(), []byte(b)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, b := range map[string]string{
		"required in a map, without value": "\xe2\x02\x00",
		"a group as a message":             "\x92\x01\x00",
	} {
		if err := checkDecoding((&testpb.Two{}).ProtoReflect().Type(), []byte(b)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := checkDecoding((&testpb.Extendable{}).ProtoReflect().Type(), []byte("\xa2\x06\x01x\x08\x01")); err != nil {
		t.Errorf("an extension and an unknown field: %v", err)
	}
}

// Decoding accepts messages and entries of maps that nest as deeply as protobuf-go
// accepts.
func TestProgramsDecodeTheDepthThatProtobufDecodes(t *testing.T) {
	needs.Time(t)
	for _, c := range []struct {
		m       proto.Message
		numbers [2]protowire.Number // in turn, from the outermost level
		last    string              // the innermost level
		most    int                 // levels that protobuf-go accepts
	}{
		{&testpb.Three{}, [2]protowire.Number{17, 17}, "", maxDepth},
		{&testpb.Maps{}, [2]protowire.Number{4, 2}, "", maxDepth},
		{&testpb.Three{}, [2]protowire.Number{17, 17}, "\xea\x03\x00", maxDepth - 1}, // with an entry of a map
	} {
		for _, n := range []int{maxDepth - 1, maxDepth, maxDepth + 1, maxDepth + 2} {
			buf := append(make([]byte, 10*n), c.last...)
			at := 10 * n // the levels are written from the innermost one, each before what it holds
			for level := n - 2; level >= 0; level-- {
				head := protowire.AppendTag(nil, c.numbers[level%2], protowire.BytesType)
				head = protowire.AppendVarint(head, uint64(len(buf)-at))
				at -= len(head)
				copy(buf[at:], head)
			}
			b := buf[at:]
			programOf(c.m).decoding.skip.Store(0)
			got, want := decodeBytes(b, c.m), proto.Unmarshal(b, c.m)
			if (got == nil) != (want == nil) || (want == nil) != (n <= c.most) {
				t.Errorf("%T, %d levels: %v, want %v", c.m, n, got, want)
			}
		}
	}
}

func TestEncodingTakesNoMemory(t *testing.T) {
	m := any(order())
	room := make([]byte, 0, 4<<10)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := Proto().Append(room, m); err != nil {
			t.Fatal(err)
		}
		if _, err := Proto().Size(m); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Marshalling by protobuf-go writes the sizes of messages into them.
func TestEncodingWritesNothing(t *testing.T) {
	m := order()
	for _, room := range []int{0, 1 << 10, 1 << 20} {
		if _, err := Proto().Append(make([]byte, 0, room), m); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Proto().Size(m); err != nil {
		t.Fatal(err)
	}
	for _, m := range []any{m, m.Owner, m.Owner.Address, m.Lines[0]} {
		v := reflect.ValueOf(m).Elem()
		if n := v.FieldByName("sizeCache").Int(); n != 0 {
			t.Errorf("%T: sizeCache is %d", m, n)
		}
		if v := v.FieldByName("state").FieldByName("atomicMessageInfo"); !v.IsNil() {
			t.Errorf("%T: state is set", m)
		}
	}
}

// Within maps, messages are moved, whatever their size.
func TestMessagesOfEachSizeInNestedMaps(t *testing.T) {
	for _, n := range []int{mostAtOnce - 50, mostAtOnce - 1, mostAtOnce, mostAtOnce + 1, 1 << 14, 1 << 21} {
		for _, levels := range []int{1, 2, 7} {
			if err := checkEncoding(nestedStruct(levels, n)); err != nil {
				t.Errorf("%d bytes in %d maps: %.300v", n, levels, err)
			}
		}
	}
	m := &testpb.Maps{StringMessage: map[string]*testpb.Maps{"": {
		Sint32Bytes:   map[int32][]byte{-1: make([]byte, 5000)},
		StringMessage: map[string]*testpb.Maps{"a": nil, "b": {}},
		StringRecord:  map[string]*testpb.Record{"a": record(), "b": {Name: strings.Repeat("x", 5000)}, "c": nil},
	}}}
	if err := checkEncoding(m); err != nil {
		t.Error(err)
	}
}

func TestSkippedMessagesGoToProtobuf(t *testing.T) {
	extended := &testpb.Extendable{}
	proto.SetExtension(extended, testpb.E_ExtString, "text")
	p := programOf(extended)
	p.encoding.skip.Store(0)
	tried := 0
	for range 4 * (skipped + 1) {
		if p.encoding.skip.Load() == 0 {
			tried++
		}
		b, err := Proto().Append(nil, extended)
		if err != nil || !bytes.Equal(b, must(proto.Marshal(extended))) {
			t.Fatalf("Append = %x, %v", b, err)
		}
	}
	if tried != 4 {
		t.Errorf("programs have tried %d times, want 4", tried)
	}
}

func TestAppendWithin(t *testing.T) {
	c := protoCodec{}
	for name, m := range map[string]struct {
		v    any
		room int
		want bool
	}{
		"nothing":  {nil, 0, true},
		"fits":     {order(), 400, true},
		"too long": {payload(100), 50, false},
		"foreign":  {&testpb.Opaque{}, 100, false},
		"refused":  {&testpb.Three{OneString: "\xff"}, 100, false},
		"required": {newRequired(), 100, false},
		"no proto": {"text", 100, false},
	} {
		if m.v != nil {
			programOf(m.v).encoding.skip.Store(0)
		}
		b, ok := c.AppendWithin(append(make([]byte, 0, m.room+1), 'x'), m.v)
		if ok != m.want || b[0] != 'x' {
			t.Errorf("%s: AppendWithin = %x, %t", name, b, ok)
		}
		if msg, isMessage := m.v.(proto.Message); ok && isMessage {
			if err := sameEncoding(msg, b[1:], must(proto.Marshal(msg))); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		} else if !bytes.Equal(b, []byte("x")) {
			t.Errorf("%s: %x was appended", name, b[1:])
		}
	}
}
