package codec

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nearcall/nearcall/internal/codec/internal/testpb"
	"github.com/nearcall/nearcall/internal/message"
)

// order is the nested record of the tournament, of 383 bytes.
func order() *testpb.Order {
	return &testpb.Order{
		Id: "ord-2041-7731", Title: "Spring order for the tea room", Created: 1767225600, Total: 214.4,
		Owner: &testpb.Order_Person{
			Name: "Ines Sørensen", Mail: "ines@tearoom.example",
			Address: &testpb.Order_Address{Street: "12 Harbour Lane", City: "Aarhus", Country: "DK"},
		},
		Lines: []*testpb.Record_Line{
			{Sku: "sencha, 500 g", Count: 4, Price: 18.5},
			{Sku: "gyokuro, 100 g", Count: 2, Price: 31},
			{Sku: "cast-iron pot", Count: 1, Price: 64.4},
			{Sku: "paper filters", Count: 14, Price: 1},
		},
		Labels: map[string]string{
			"channel": "web", "priority": "normal", "region": "eu-north", "carrier": "post", "gift": "no", "currency": "EUR",
		},
		Tags: []string{"tea", "wholesale", "returning-customer"},
	}
}

var encodedMessages = []struct {
	name string
	m    proto.Message
}{
	{"Payload32B", payload(32)},
	{"Payload1KB", payload(1 << 10)},
	{"Payload1MB", payload(1 << 20)},
	{"Text100B", wrapperspb.String(strings.Repeat("x", 100))},
	{"Order", order()},
	{"Orders200", orders(200)},
	{"Numbers", &testpb.Three{RepInt64: numbers(1000), RepDouble: make([]float64, 1000)}},
	{"Struct", must(structpb.NewStruct(map[string]any{"a": []any{1, "b", nil, true, map[string]any{"c": 0.5}}}))},
	{"Struct4Levels1MB", nestedStruct(4, 1<<20)},
	{"Struct32Levels1MB", nestedStruct(32, 1<<20)},
	{"Struct32Levels3KB", nestedStruct(32, 3<<10)},
	{"Descriptor", fileDescriptor()},
	{"UnknownField", withUnknown(order(), unknowns[1])},
	{"Extension", extendable()}, // which protobuf-go encodes and decodes
}

// nestedStruct returns structs within structs, the innermost with n bytes of text.
func nestedStruct(levels, n int) proto.Message {
	m := map[string]any{"text": strings.Repeat("x", n), "b": true}
	for range levels - 1 {
		m = map[string]any{"struct": m, "a": 1}
	}
	return must(structpb.NewStruct(m))
}

func extendable() proto.Message {
	m := &testpb.Extendable{Text: new(strings.Repeat("x", 100))}
	proto.SetExtension(m, testpb.E_ExtString, "text")
	return &testpb.Two{RepString: []string{"alpha", "beta", "gamma"}, OptString: new("text"), OptExtendable: m}
}

func orders(n int) proto.Message {
	m := &testpb.Maps{StringMessage: map[string]*testpb.Maps{}}
	for i := range n {
		m.StringMessage[strings.Repeat("k", i+1)] = &testpb.Maps{StringRecord: map[string]*testpb.Record{"a": record(), "b": record()}}
	}
	return m
}

func numbers(n int) []int64 {
	l := make([]int64, n)
	for i := range l {
		l[i] = int64(i * i * i)
	}
	return l
}

// BenchmarkEncode compares the programs with protobuf-go. Room for the message exists.
func BenchmarkEncode(b *testing.B) {
	for _, m := range encodedMessages {
		buf := make([]byte, 0, proto.Size(m.m))
		b.Run(m.name+"/programs", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Proto().Append(buf, m.m); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(m.name+"/protobuf", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := (proto.MarshalOptions{}).MarshalAppend(buf, m.m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkEncodeMeasured is how large messages are encoded: their size is needed first.
func BenchmarkEncodeMeasured(b *testing.B) {
	for _, m := range encodedMessages {
		var buf []byte
		b.Run(m.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				live := message.Live(m.m, Proto())
				sized, err := live.Sized()
				if err != nil {
					b.Fatal(err)
				}
				if buf, err = sized.Append(slices.Grow(buf[:0], sized.Bound())); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkSize(b *testing.B) {
	for _, m := range encodedMessages {
		b.Run(m.name+"/programs", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Proto().Size(m.m); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(m.name+"/protobuf", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				proto.Size(m.m)
			}
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, m := range encodedMessages {
		data := must(proto.Marshal(m.m))
		mt := m.m.ProtoReflect().Type()
		b.Run(m.name+"/programs", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := decodeBytes(data, mt.New().Interface()); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(m.name+"/protobuf", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := proto.Unmarshal(data, mt.New().Interface()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
