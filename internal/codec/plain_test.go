package codec

import (
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/nearcall/nearcall/internal/codec/internal/testpb"
)

// A message with extensions is not plain, nor is one that protoc-gen-go did not
// generate: their types may have their own marshalling methods.
func TestWhatMayNeedOthersCodeIsNotPlain(t *testing.T) {
	for name, c := range map[string]struct {
		m    proto.Message
		want bool
	}{
		"open":                      {&testpb.Three{}, true},
		"recursive, in maps":        {&structpb.Struct{}, true},
		"any":                       {&anypb.Any{}, true},
		"opaque within":             {&testpb.Mixed{}, true},
		"extensions":                {&testpb.Extendable{}, false},
		"extensions within":         {&testpb.Two{}, false},
		"a type made while it runs": {dynamicpb.NewMessage((&testpb.Three{}).ProtoReflect().Descriptor()), false},
	} {
		if got := isPlain(c.m.ProtoReflect(), make(map[reflect.Type]bool)); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}

// A message that may need user code to marshal is encoded by its sender. Copies returns
// false for it, and true for all others.
func TestSendersEncodeWhatMayNeedTheirCode(t *testing.T) {
	extended := &testpb.Extendable{}
	proto.SetExtension(extended, testpb.E_ExtString, "text")
	for name, c := range map[string]struct {
		m            proto.Message
		want, shares bool
	}{
		"plain":            {&testpb.Three{OneBool: true}, true, true},
		"opaque field":     {&testpb.Mixed{Opaques: []*testpb.Opaque{nil}}, true, true},
		"unset extensions": {&testpb.Two{OptExtendable: &testpb.Extendable{Text: new("text")}}, true, true},
		"extension":        {extended, false, true},
		"nested extension": {&testpb.Two{OptExtendable: extended}, false, true},
		"refused":          {&testpb.RequiredMessage{}, true, true},
		"typed nil":        {(*testpb.Two)(nil), true, true},
		"opaque":           {&testpb.Opaque{}, false, false},
		"contains itself":  {itself(), true, true},
	} {
		if got := Proto().Copies(c.m); got != c.want {
			t.Errorf("%s: Copies is %t, want %t", name, got, c.want)
		}
		if got := Shared().Copies(c.m); got != c.shares {
			t.Errorf("%s: shared, Copies is %t, want %t", name, got, c.shares)
		}
	}
}

// itself returns a message that contains itself. Marshalling it would never return.
func itself() *testpb.Two {
	m := &testpb.Two{}
	m.OptMessage = m
	return m
}
