package codec

import (
	"math/rand/v2"
	"testing"

	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nearcall/nearcall/internal/codec/internal/testpb"
)

// fuzzed are the messages that are fuzzed. The corpus refers to them by index.
var fuzzed = []proto.Message{
	(*testpb.Three)(nil),
	(*testpb.Two)(nil),
	(*testpb.Required)(nil),
	(*testpb.RequiredMessage)(nil),
	(*testpb.Extendable)(nil),
	(*testpb.Record)(nil),
	(*testpb.Opaque)(nil),
	(*testpb.Mixed)(nil),
	(*structpb.Value)(nil),
	(*wrapperspb.BytesValue)(nil),
	(*descriptorpb.FileDescriptorProto)(nil),
	(*grpc_testing.SimpleRequest)(nil),
	(*grpc_testing.StreamingOutputCallRequest)(nil),
	(*grpc_health_v1.HealthCheckResponse)(nil),
	(*grpc_reflection_v1.ServerReflectionResponse)(nil),
	(*testpb.Editions)(nil),
	(*testpb.Hybrid)(nil),
	(*testpb.Maps)(nil),
	(*testpb.Order)(nil),
	(*structpb.Struct)(nil),
	protoadapt.MessageV2Of((*legacyMessage)(nil)),
}

func FuzzCopyIsMarshalThenUnmarshal(f *testing.F) {
	for i := range fuzzed {
		f.Add(uint8(i), []byte(nil), []byte(nil))
		for j := range 40 {
			weft := make([]byte, 60)
			for k := range weft {
				weft[k] = byte(i*7 + j*31 + k*(j*2+1)*13 + k*k)
			}
			f.Add(uint8(i), []byte(nil), weft)
		}
	}
	f.Fuzz(func(t *testing.T, typ uint8, wire, weft []byte) {
		mt := fuzzed[int(typ)%len(fuzzed)].ProtoReflect().Type()
		partial := proto.UnmarshalOptions{AllowPartial: true}
		make := func() proto.Message {
			m := mt.New().Interface()
			if partial.Unmarshal(wire, m) != nil {
				proto.Reset(m)
			}
			(&weaver{bytes: weft}).message(m, 4)
			return m
		}
		if err := check(mt.New().Interface(), make()); err != nil {
			t.Fatalf("into an empty %T: %v", make(), err)
		}
		dst := mt.New().Interface()
		(&weaver{bytes: wire}).message(dst, 4)
		if err := check(dst, make()); err != nil {
			t.Fatalf("into a %T: %v", make(), err)
		}
	})
}

func FuzzProgramsEncodeAsProtobufDoes(f *testing.F) {
	r := rand.New(rand.NewPCG(3, 4))
	for i := range fuzzed {
		for range 4 {
			weft := make([]byte, r.IntN(200))
			for k := range weft {
				weft[k] = byte(r.Uint32())
			}
			f.Add(uint8(i), weft)
		}
	}
	f.Fuzz(func(t *testing.T, typ uint8, weft []byte) {
		m := fuzzed[int(typ)%len(fuzzed)].ProtoReflect().Type().New().Interface()
		(&weaver{bytes: weft}).message(m, 6)
		if err := checkEncoding(m); err != nil {
			t.Fatalf("%T: %v\n%v", m, err, m)
		}
	})
}

func FuzzProgramsDecodeOtherEncodings(f *testing.F) {
	r := rand.New(rand.NewPCG(7, 8))
	for i := range fuzzed {
		for range 40 {
			weft := make([]byte, r.IntN(400))
			for k := range weft {
				weft[k] = byte(r.Uint32())
			}
			f.Add(uint8(i), weft)
		}
	}
	f.Fuzz(func(t *testing.T, typ uint8, weft []byte) {
		mt := fuzzed[int(typ)%len(fuzzed)].ProtoReflect().Type()
		if err := checkDecoding(mt, (&weaver{bytes: weft}).encoding(nil, mt.Descriptor(), 6)); err != nil {
			t.Fatalf("%v: %v", mt.Descriptor().FullName(), err)
		}
	})
}

func FuzzProgramsDecodeAsProtobufDoes(f *testing.F) {
	r := rand.New(rand.NewPCG(5, 6))
	for i, m := range fuzzed {
		for range 4 {
			b, _ := proto.MarshalOptions{AllowPartial: true}.Marshal(woven(r, m.ProtoReflect().Type()))
			f.Add(uint8(i), b)
		}
	}
	f.Fuzz(func(t *testing.T, typ uint8, wire []byte) {
		mt := fuzzed[int(typ)%len(fuzzed)].ProtoReflect().Type()
		if err := checkDecoding(mt, wire); err != nil {
			t.Fatalf("%v: %v", mt.Descriptor().FullName(), err)
		}
	})
}
