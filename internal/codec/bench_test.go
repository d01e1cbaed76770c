package codec

import (
	"bytes"
	"testing"

	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nearcall/nearcall/internal/codec/internal/testpb"
)

func payload(n int) *grpc_testing.SimpleRequest {
	return &grpc_testing.SimpleRequest{Payload: &grpc_testing.Payload{Body: bytes.Repeat([]byte{1}, n)}}
}

func record() *testpb.Record {
	return &testpb.Record{
		Id:       "6f1c2c1e-52ab-4a7c-9d29-7c0b7a3c7d10",
		Name:     "a record of some kind",
		Revision: 42,
		Tags:     []string{"alpha", "beta", "gamma"},
		Labels:   map[string]string{"region": "north", "zone": "b", "tier": "gold"},
		Lines:    []*testpb.Record_Line{{Sku: "A-1", Count: 1, Price: 9.5}, {Sku: "B-2", Count: 2, Price: 0.5}},
		Created:  &timestamppb.Timestamp{Seconds: 1700000000, Nanos: 5},
	}
}

func BenchmarkCopy(b *testing.B) {
	for _, m := range []struct {
		name string
		src  proto.Message
	}{
		{"Empty", &grpc_testing.Empty{}},
		{"Payload32B", payload(32)},
		{"Payload1KB", payload(1 << 10)},
		{"Payload1MB", payload(1 << 20)},
		{"Record", record()},
		{"Records", orders(20)},
		{"Struct", must(structpb.NewStruct(map[string]any{"a": []any{1, "b", nil, true, map[string]any{"c": 0.5}}}))},
	} {
		b.Run(m.name, func(b *testing.B) {
			c := Proto()
			shell := c.New(m.src)
			b.Run("Copy", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, ok, _ := c.Copy(c.New(m.src), m.src); !ok {
						b.Fatal("no copy")
					}
				}
			})
			b.Run("CopyReused", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, ok, _ := c.Copy(shell, m.src); !ok {
						b.Fatal("no copy")
					}
				}
			})
			b.Run("Merge", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					proto.Merge(c.New(m.src).(proto.Message), m.src)
				}
			})
			b.Run("Bytes", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					data, err := proto.Marshal(m.src)
					if err != nil {
						b.Fatal(err)
					}
					if err := proto.Unmarshal(data, c.New(m.src).(proto.Message)); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}
