package codec

import (
	"errors"
	"math"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/nearcall/nearcall/internal/codec/internal/testpb"
)

func newRequired() *testpb.Required {
	return &testpb.Required{
		Number: new(int32(1)),
		Text:   new(""),
		Data:   []byte{},
		Enum:   new(testpb.Closed_CLOSED_ONE),
		Flag:   new(false),
		Ratio:  new(0.5),
	}
}

// editions sets the required fields of m, or of a new message, and returns it.
func editions(m *testpb.Editions) *testpb.Editions {
	if m == nil {
		m = &testpb.Editions{}
	}
	m.RequiredInt32 = new(int32(0))
	return m
}

// TestCopyIsDirect copies messages that Copy must support. The result must equal
// that of marshalling and unmarshalling.
func TestCopyIsDirect(t *testing.T) {
	var typedNil *testpb.Three_ChoiceInt32
	for name, m := range map[string]proto.Message{
		"nothing":                      &testpb.Three{},
		"typed nil":                    (*testpb.Three)(nil),
		"empty bytes":                  &testpb.Three{OneBytes: []byte{}},
		"empty bytes with presence":    &testpb.Three{OptBytes: []byte{}},
		"empty proto2 bytes":           &testpb.Two{OptBytes: []byte{}},
		"zero with presence":           &testpb.Three{OptInt32: new(int32(0)), OptString: new("")},
		"negative zero":                &testpb.Three{OneFloat: float32(math.Copysign(0, -1)), OneDouble: math.Copysign(0, -1)},
		"NaN":                          &testpb.Three{OneDouble: math.NaN(), RepFloat: []float32{float32(math.NaN())}},
		"negative int32":               &testpb.Three{OneInt32: -1, RepInt32: []int32{-1, -1}},
		"negative enum":                &testpb.Two{OptEnum: testpb.Closed_CLOSED_NEGATIVE.Enum()},
		"value unknown to closed enum": &testpb.Two{OptEnum: new(testpb.Closed(77)), RepEnum: []testpb.Closed{-5, 1}},
		"empty lists":                  &testpb.Three{RepBool: []bool{}, RepString: []string{}, RepMessage: []*testpb.Three{}, RepBytes: [][]byte{}},
		"nil elements":                 &testpb.Three{RepMessage: []*testpb.Three{nil, {OneBool: true}}, RepBytes: [][]byte{nil, {}, {1}}},
		"empty maps":                   &testpb.Three{MapStringString: map[string]string{}, MapUint32Message: map[uint32]*testpb.Three{}},
		"nil map values":               &testpb.Three{MapStringMessage: map[string]*testpb.Three{"": nil}, MapStringBytes: map[string][]byte{"": nil}},
		"scalar maps":                  &testpb.Three{MapStringInt64: map[string]int64{"a": -1}, MapBoolEnum: map[bool]testpb.Open{true: 1, false: 0}, MapUint64Sint64: map[uint64]int64{math.MaxUint64: math.MinInt64}},
		"typed nil wrapper":            &testpb.Three{Choice: typedNil},
		"zero in oneof":                &testpb.Three{Choice: &testpb.Three_ChoiceInt32{}, Other: &testpb.Three_OtherString{}},
		"nil bytes in oneof":           &testpb.Three{Choice: &testpb.Three_ChoiceBytes{}},
		"nil message in oneof":         &testpb.Three{Choice: &testpb.Three_ChoiceMessage{}},
		"groups":                       &testpb.Two{Optgroup: &testpb.Two_OptGroup{Two: &testpb.Two{}}, Repgroup: []*testpb.Two_RepGroup{{Number: new(int32(3))}, nil}},
		"group in oneof":               &testpb.Two{Choice: &testpb.Two_Onegroup{}},
		"required fields":              newRequired(),
		"required message":             &testpb.RequiredMessage{Message: newRequired(), Messages: []*testpb.Required{newRequired()}},
		"invalid UTF-8 in proto2":      &testpb.Two{OptString: new("\xff"), MapStringString: map[string]string{"\xff": "\xfe"}},
		"recursion":                    &testpb.Three{OneMessage: &testpb.Three{OptMessage: &testpb.Three{RepMessage: []*testpb.Three{{OneInt32: 1}}}}},
		"number of 5 bytes":            &testpb.Three{Far: "far"},
		"unverified editions strings":  editions(&testpb.Editions{Unverified: new("\xff"), RepUnverified: []string{"\xff"}, MapUnverified: map[string]string{"\xff": "\xff"}, Choice: &testpb.Editions_ChoiceUnverified{ChoiceUnverified: "\xff"}}),
		"editions presence":            editions(&testpb.Editions{ExplicitBytes: []byte{}, ImplicitBytes: []byte{}, ExplicitInt32: new(int32(0))}),
		"delimited editions messages":  editions(&testpb.Editions{Delimited: editions(nil), RepDelimited: []*testpb.Editions{editions(nil)}, Choice: &testpb.Editions_ChoiceDelimited{ChoiceDelimited: editions(nil)}}),
		"unset extensions":             &testpb.Extendable{Text: new("text")},
		"unset opaque message":         &testpb.Mixed{Text: "text", Choice: &testpb.Mixed_ChoiceText{ChoiceText: "text"}},
		"record":                       record(),
		"struct":                       must(structpb.NewStruct(map[string]any{"a": []any{1, "b", nil, true, map[string]any{"c": 0.5}}})),
		"descriptor":                   fileDescriptor(),
		"unknown fields":               withUnknown(&testpb.Three{OneBool: true}, unknowns[0]+unknowns[1]+unknowns[2]),
		"long tag in unknown fields":   withUnknown(&testpb.Three{}, "\xca\xbe\x00\x01a"),
	} {
		t.Run(name, func(t *testing.T) {
			for _, dst := range []proto.Message{m.ProtoReflect().Type().New().Interface(), cloneOf(m)} {
				if _, ok, err := Proto().Copy(dst, m); !ok || err != nil {
					t.Fatalf("Copy = %v, %v", ok, err)
				}
				if err := check(dst, cloneOf(m)); err != nil {
					t.Error(err)
				}
			}
			if err := check(m.ProtoReflect().Type().New().Interface(), m); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestCopyThroughBytes copies messages that Copy must leave to marshalling.
func TestCopyThroughBytes(t *testing.T) {
	opaque := &testpb.Opaque{}
	opaque.SetText("text")
	extended := &testpb.Extendable{}
	proto.SetExtension(extended, testpb.E_ExtString, "text")
	for name, m := range map[string]proto.Message{
		"opaque":                      opaque,
		"opaque field":                &testpb.Mixed{Opaque: opaque},
		"opaque elements":             &testpb.Mixed{Opaques: []*testpb.Opaque{nil}},
		"opaque map values":           &testpb.Mixed{ByName: map[string]*testpb.Opaque{"": opaque}},
		"opaque in oneof":             &testpb.Mixed{Choice: &testpb.Mixed_ChoiceOpaque{ChoiceOpaque: opaque}},
		"extension":                   extended,
		"nested extension":            &testpb.Two{OptExtendable: extended},
		"dynamic":                     dynamicpb.NewMessage(record().ProtoReflect().Descriptor()),
		"known field among unknown":   withUnknown(&testpb.Three{}, "\x08\x01"),
		"extension among unknown":     withUnknown(&testpb.Extendable{}, "\xa2\x06\x01x"),
		"malformed unknown field":     withUnknown(&testpb.Three{}, "\xca\x3e\x03a"),
		"deeper than decoding accept": deep(maxDepth + 1),
	} {
		t.Run(name, func(t *testing.T) {
			dst := m.ProtoReflect().New().Interface()
			if _, ok, err := Proto().Copy(dst, m); ok || err != nil {
				t.Errorf("Copy = %v, %v; want bytes", ok, err)
			}
			if proto.Size(dst) != 0 {
				t.Errorf("dst is %v", dst)
			}
		})
	}
}

func TestCopyRefusesWhatMarshallingRefuses(t *testing.T) {
	for name, m := range map[string]proto.Message{
		"nothing required is set":   &testpb.Required{},
		"typed nil":                 (*testpb.Required)(nil),
		"required bytes":            func() proto.Message { m := newRequired(); m.Data = nil; return m }(),
		"nested":                    &testpb.RequiredMessage{Message: &testpb.Required{}},
		"nil element":               &testpb.RequiredMessage{Message: newRequired(), Messages: []*testpb.Required{nil}},
		"nil map value":             &testpb.Two{MapStringRequired: map[string]*testpb.Required{"": nil}},
		"nil in oneof":              &testpb.Two{Choice: &testpb.Two_OneRequired{}},
		"within group":              &testpb.Two{Repgroup: []*testpb.Two_RepGroup{{Required: &testpb.Required{}}}},
		"UTF-8":                     &testpb.Three{OneString: "\xff"},
		"UTF-8 with presence":       &testpb.Three{OptString: new("\xff")},
		"UTF-8 of element":          &testpb.Three{RepString: []string{"", "\xff"}},
		"UTF-8 of key":              &testpb.Three{MapStringBool: map[string]bool{"\xff": true}},
		"UTF-8 of key of messages":  &testpb.Three{MapStringMessage: map[string]*testpb.Three{"\xff": nil}},
		"UTF-8 of value":            &testpb.Three{MapStringString: map[string]string{"": "\xff"}},
		"UTF-8 of value by integer": &testpb.Three{MapInt32String: map[int32]string{1: "\xff"}},
		"UTF-8 in editions":         editions(&testpb.Editions{Verified: new("\xff")}),
		"UTF-8 in editions element": editions(&testpb.Editions{RepVerified: []string{"\xff"}}),
		"UTF-8 in editions map":     editions(&testpb.Editions{MapVerified: map[string]string{"\xff": ""}}),
		"UTF-8 in editions oneof":   editions(&testpb.Editions{Choice: &testpb.Editions_ChoiceVerified{ChoiceVerified: "\xff"}}),
		"required in editions":      &testpb.Editions{Delimited: editions(nil)},
		"UTF-8 in oneof":            &testpb.Three{Choice: &testpb.Three_ChoiceString{ChoiceString: "\xff"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, want := Proto().Append(nil, m)
			if want == nil {
				t.Fatal("marshalling does not refuse")
			}
			dst := m.ProtoReflect().Type().New().Interface()
			if _, ok, err := Proto().Copy(dst, m); ok || err != nil {
				t.Errorf("Copy = %v, %v; want false and nil, so that marshalling reports %q", ok, err, want)
			}
		})
	}
}

func TestCopyOfMessageThatContainsItselfFails(t *testing.T) {
	list := &testpb.Three{}
	list.RepMessage = []*testpb.Three{{OneMessage: list}, {OneMessage: list}}
	oneof := &testpb.Three{}
	oneof.Choice = &testpb.Three_ChoiceMessage{ChoiceMessage: oneof}
	values := &testpb.Three{}
	values.MapStringMessage = map[string]*testpb.Three{"a": values}
	for _, m := range []proto.Message{list, oneof, values} {
		if _, ok, err := Proto().Copy(&testpb.Three{}, m); ok || err != errCyclic {
			t.Errorf("Copy = %v, %v; want %v", ok, err, errCyclic)
		}
	}
}

func TestCopyAcceptsTheDepthThatDecodingAccepts(t *testing.T) {
	if _, ok, err := Proto().Copy(&testpb.Three{}, deep(maxDepth)); !ok || err != nil {
		t.Errorf("Copy = %v, %v", ok, err)
	}
	b, err := proto.Marshal(deep(maxDepth))
	if err != nil {
		t.Fatal(err)
	}
	if err := proto.Unmarshal(b, &testpb.Three{}); err != nil {
		t.Errorf("decoding does not accept it: %v", err)
	}
}

func TestCopyOntoItself(t *testing.T) {
	m := &testpb.Three{OneBytes: []byte{}, RepString: []string{"a"}, RepMessage: []*testpb.Three{nil}}
	if _, ok, err := Proto().Copy(m, m); !ok || err != nil {
		t.Fatalf("Copy = %v, %v", ok, err)
	}
	if d := diff(m, &testpb.Three{RepString: []string{"a"}, RepMessage: []*testpb.Three{{}}}); d != "" {
		t.Error(d)
	}
}

func TestCopyOutOfDestination(t *testing.T) {
	m := &testpb.Three{OneMessage: &testpb.Three{OneString: "inner", RepBytes: [][]byte{{1}}}, OneString: "outer"}
	if _, ok, err := Proto().Copy(m, m.OneMessage); !ok || err != nil {
		t.Fatalf("Copy = %v, %v", ok, err)
	}
	if d := diff(m, &testpb.Three{OneString: "inner", RepBytes: [][]byte{{1}}}); d != "" {
		t.Error(d)
	}
}

func TestNilSourceIsEmpty(t *testing.T) {
	c := Proto()
	if n, err := c.Size(nil); n != 0 || err != nil {
		t.Errorf("Size = %d, %v", n, err)
	}
	if b, err := c.Append([]byte("x"), nil); string(b) != "x" || err != nil {
		t.Errorf("Append = %q, %v", b, err)
	}
	dst := record()
	if bound, ok, err := c.Copy(dst, nil); bound != 0 || !ok || err != nil || !proto.Equal(dst, &testpb.Record{}) {
		t.Errorf("Copy = %d, %v, %v and %v", bound, ok, err, dst)
	}
	required := newRequired()
	if _, ok, err := c.Copy(required, nil); ok || err != nil || required.Text == nil {
		t.Errorf("Copy = %v, %v; decoding must report the missing required fields", ok, err)
	}
}

func TestWrongTypes(t *testing.T) {
	c := Proto()
	wrongs := []any{"text", 1, struct{}{}, &struct{}{}, errors.New("x"), (*testpb.Record)(nil), nil, record()}
	for _, wrong := range wrongs {
		if _, ok, err := c.Copy(wrong, payload(1)); ok || err != nil {
			t.Errorf("Copy to %T = %v, %v", wrong, ok, err)
		}
		if c.Move(wrong, payload(1)) || c.Move(payload(1), wrong) {
			t.Errorf("Move of %T", wrong)
		}
		if _, ok, err := c.Copy(payload(1), wrong); wrong != nil && (ok || err != nil) {
			t.Errorf("Copy from %T = %v, %v", wrong, ok, err)
		}
	}
	standard := encoding.GetCodecV2("proto")
	for _, wrong := range wrongs[:5] {
		_, want := standard.Marshal(wrong)
		if _, err := c.Append(nil, wrong); err == nil || err.Error() != want.Error() {
			t.Errorf("Append: %v, want %v", err, want)
		}
		if _, err := c.Size(wrong); err == nil || err.Error() != want.Error() {
			t.Errorf("Size: %v, want %v", err, want)
		}
		want = standard.Unmarshal(nil, wrong)
		if err := decode(c, nil, wrong); err == nil || err.Error() != want.Error() {
			t.Errorf("Decode: %v, want %v", err, want)
		}
	}
	if err := decode(c, nil, (*testpb.Record)(nil)); err == nil {
		t.Error("Decode into a nil message succeeds")
	}
}

func TestSizeAppendDecode(t *testing.T) {
	c := Proto()
	n, err := c.Size(record())
	if err != nil {
		t.Fatal(err)
	}
	b, err := c.Append([]byte("prefix"), record())
	if err != nil || len(b) != n+len("prefix") || string(b[:6]) != "prefix" {
		t.Fatalf("Append = %q, %v; size is %d", b, err, n)
	}
	b = b[6:]
	got := &testpb.Record{Name: "other", Deleted: true}
	if err := decode(c, mem.BufferSlice{mem.SliceBuffer(b[:10]), mem.SliceBuffer(b[10:])}, got); err != nil {
		t.Fatal(err)
	}
	clear(b)
	if d := diff(got, record()); d != "" {
		t.Error(d)
	}
}

func TestMoveThroughShell(t *testing.T) {
	c := Proto()
	src := record()
	shell := c.New(src)
	if _, ok, err := c.Copy(shell, src); !ok || err != nil {
		t.Fatalf("Copy = %v, %v", ok, err)
	}
	dst := &testpb.Record{Name: "other", Deleted: true}
	held := dst.ProtoReflect()
	if !c.Move(dst, shell) {
		t.Fatal("Move = false")
	}
	if d := diff(dst, record()); d != "" {
		t.Error(d)
	}
	if d := diff(shell, &testpb.Record{}); d != "" {
		t.Errorf("shell: %s", d)
	}
	held.Range(func(protoreflect.FieldDescriptor, protoreflect.Value) bool { return true })
	if !c.Move(dst, dst) || diff(dst, record()) != "" {
		t.Error("a move of a message to itself changes it")
	}
}

func TestNewIsForWhatMoves(t *testing.T) {
	c := Proto()
	if m, ok := c.New((*testpb.Record)(nil)).(*testpb.Record); !ok || m == nil {
		t.Error("no shell for a type that moves")
	}
	for _, m := range []any{nil, "text", &testpb.Opaque{}, dynamicpb.NewMessage(record().ProtoReflect().Descriptor())} {
		if c.New(m) != nil {
			t.Errorf("a shell for %T", m)
		}
	}
}

// TestStateSurvives keeps the protoreflect.Message of a destination across a copy.
func TestStateSurvives(t *testing.T) {
	for name, src := range map[string]proto.Message{
		"success": &testpb.Three{OneString: "text"},
		"failure": &testpb.Three{OneBool: true, OneString: "\xff"},
	} {
		for _, dst := range []*testpb.Three{{}, {OneInt32: 1}} {
			held := dst.ProtoReflect()
			Proto().Copy(dst, src)
			if !held.IsValid() || held.Interface() != proto.Message(dst) {
				t.Errorf("%s: lost", name)
			}
			held.Range(func(protoreflect.FieldDescriptor, protoreflect.Value) bool { return true })
		}
	}
}

func TestConcurrentCopiesOfOneMessage(t *testing.T) {
	src := record()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			dst := &testpb.Record{Name: "other"}
			for range 200 {
				if _, ok, err := Proto().Copy(dst, src); !ok || err != nil {
					t.Errorf("Copy = %v, %v", ok, err)
					return
				}
				dst.Lines[0].Count++
				dst.Labels["x"] = "y"
			}
		})
		wg.Go(func() {
			for range 200 {
				if _, err := Proto().Append(nil, src); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// An embedder implements proto.Message only by embedding a message.
type embedder struct{ *grpc_testing.SimpleRequest }

func TestEmbeddedMessageIsNotCopied(t *testing.T) {
	src := embedder{payload(8)}
	if _, ok, err := Proto().Copy(embedder{payload(1)}, src); ok || err != nil {
		t.Errorf("Copy = %v, %v", ok, err)
	}
	if _, ok, err := Proto().Copy(&embedder{payload(1)}, &src); ok || err != nil {
		t.Errorf("Copy = %v, %v", ok, err)
	}
	if b, err := Proto().Append(nil, src); err != nil || len(b) == 0 {
		t.Errorf("Append = %q, %v", b, err)
	}
}

// A legacyMessage is a message as gogo and the first protoc-gen-go generate them.
type legacyMessage struct {
	Text             *string                   `protobuf:"bytes,1,opt,name=text"`
	Numbers          []int32                   `protobuf:"varint,2,rep,packed,name=numbers"`
	Next             *legacyMessage            `protobuf:"bytes,3,opt,name=next"`
	ByName           map[string]*legacyMessage `protobuf:"bytes,4,rep,name=by_name" protobuf_key:"bytes,1,opt,name=key" protobuf_val:"bytes,2,opt,name=value"`
	Three            *testpb.Three             `protobuf:"bytes,5,opt,name=three"`
	XXX_unrecognized []byte
}

func (m *legacyMessage) Reset()         { *m = legacyMessage{} }
func (m *legacyMessage) String() string { return "legacy" }
func (*legacyMessage) ProtoMessage()    {}

// passed returns what a program passes to the codec for m: a legacy message is no proto.Message.
func passed(m proto.Message) any {
	if m, ok := protoadapt.MessageV1Of(m).(*legacyMessage); ok {
		return m
	}
	return m
}

func TestLegacyMessagesGoThroughBytes(t *testing.T) {
	c := Proto()
	src, dst := &legacyMessage{Text: new("text")}, &legacyMessage{Text: new("other")}
	if _, ok, err := c.Copy(dst, src); ok || err != nil || *dst.Text != "other" {
		t.Fatalf("Copy = %v, %v", ok, err)
	}
	if c.New(src) != nil || c.Move(dst, src) {
		t.Error("a legacy message moves")
	}
	n, err := c.Size(src)
	if err != nil {
		t.Fatal(err)
	}
	b, err := c.Append(nil, src)
	if err != nil || len(b) != n {
		t.Fatalf("Append = %q, %v; size is %d", b, err, n)
	}
	if err := decode(c, mem.BufferSlice{mem.SliceBuffer(b)}, dst); err != nil || *dst.Text != "text" {
		t.Errorf("Decode makes %v, %v", dst.Text, err)
	}
	if b, err := c.Append(nil, (*legacyMessage)(nil)); len(b) != 0 || err != nil {
		t.Errorf("Append of nil = %q, %v", b, err)
	}
	if err := decode(c, nil, (*legacyMessage)(nil)); err == nil {
		t.Error("Decode into a nil message succeeds")
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func cloneOf(m proto.Message) proto.Message {
	n := m.ProtoReflect().Type().New().Interface()
	must(0, proto.UnmarshalOptions{AllowPartial: true}.Unmarshal(must(proto.MarshalOptions{AllowPartial: true}.Marshal(m)), n))
	return n
}

func withUnknown(m proto.Message, b string) proto.Message {
	m.ProtoReflect().SetUnknown([]byte(b))
	return m
}

func deep(n int) *testpb.Three {
	m := &testpb.Three{}
	for range n - 1 {
		m = &testpb.Three{OneMessage: m}
	}
	return m
}

func fileDescriptor() *descriptorpb.FileDescriptorProto {
	m := &descriptorpb.FileDescriptorProto{
		Name:    new(strings.Repeat("name", 100)),
		Options: &descriptorpb.FileOptions{JavaPackage: new("com.example")},
		MessageType: []*descriptorpb.DescriptorProto{{
			Name:  new("M"),
			Field: []*descriptorpb.FieldDescriptorProto{{Number: new(int32(1)), Type: descriptorpb.FieldDescriptorProto_TYPE_BOOL.Enum()}},
		}},
		PublicDependency: []int32{1, 2, 300},
	}
	return m
}
