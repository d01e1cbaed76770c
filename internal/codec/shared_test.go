package codec

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func TestSharingGivesASecondHandleOnTheSameContents(t *testing.T) {
	record, err := structpb.NewStruct(map[string]any{"a": 1.0, "b": []any{"c", true}, "d": map[string]any{"e": nil}})
	if err != nil {
		t.Fatal(err)
	}
	unknown := &wrapperspb.StringValue{Value: "v"}
	unknown.ProtoReflect().SetUnknown([]byte{0x50, 0x01})
	for _, src := range []proto.Message{
		record,
		unknown,
		structpb.NewStringValue("one of several"),
		protodesc.ToFileDescriptorProto(descriptorpb.File_google_protobuf_descriptor_proto),
		&descriptorpb.FileOptions{},
	} {
		dst := src.ProtoReflect().New().Interface()
		bound, ok, err := Shared().Copy(dst, src)
		if !ok || err != nil || bound != proto.Size(src) {
			t.Errorf("%T: bound %d of %d, %v, %v", src, bound, proto.Size(src), ok, err)
		}
		if !proto.Equal(dst, src) {
			t.Errorf("%T: %v, want %v", src, dst, src)
		}
	}
	dst := new(structpb.Struct)
	if _, _, err := Shared().Copy(dst, record); err != nil || dst.Fields["b"] != record.Fields["b"] {
		t.Errorf("the contents were copied, %v", err)
	}
	if _, ok, err := Shared().Copy(record, record); !ok || err != nil || len(record.Fields) != 3 {
		t.Errorf("with itself: %v, %v, %v", record, ok, err)
	}
}

func TestWhatCannotBeSharedIsCopied(t *testing.T) {
	src := wrapperspb.String("v")
	for name, dst := range map[string]any{
		"another type": new(wrapperspb.BytesValue),
		"dynamic":      dynamicpb.NewMessage(src.ProtoReflect().Descriptor()),
		"nil":          (*wrapperspb.StringValue)(nil),
	} {
		if _, ok, err := Shared().Copy(dst, src); ok || err != nil {
			t.Errorf("%s: %v, %v", name, ok, err)
		}
	}
	dst := wrapperspb.String("before")
	if _, ok, err := Shared().Copy(dst, (*wrapperspb.StringValue)(nil)); !ok || err != nil || dst.Value != "" {
		t.Errorf("of nothing: %v, %v, %v", dst, ok, err)
	}
	if Shared() == Proto() {
		t.Error("the codec that shares is the one that copies")
	}
}
