package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/jhump/protoreflect/v2/protoresolve"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/nearcall/nearcall/cmd/nearcall/internal/schema"
)

// An output prints messages as JSON.
type output struct {
	types            lenient
	compact, emitAll bool
}

func newOutput(types protoresolve.TypeResolver, warnings io.Writer) *output {
	return &output{types: lenient{types, warnings, make(map[string]bool)}}
}

// print writes m, and nothing if it cannot be written as JSON.
func (o *output) print(w io.Writer, m proto.Message) error {
	text, err := o.json(m)
	if err != nil {
		return fmt.Errorf("a reply cannot be printed as JSON: %s", reason(err))
	}
	_, err = w.Write(append(text, '\n'))
	return err
}

func (o *output) json(m proto.Message) ([]byte, error) {
	// The codec that received m knows no extensions.
	encoded, err := proto.MarshalOptions{AllowPartial: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	again := m.ProtoReflect().New().Interface()
	if err := (proto.UnmarshalOptions{AllowPartial: true, Resolver: o.types}).Unmarshal(encoded, again); err != nil {
		return nil, err
	}
	text, err := protojson.MarshalOptions{AllowPartial: true, EmitDefaultValues: o.emitAll, Resolver: o.types}.Marshal(again)
	if err != nil {
		return nil, err
	}
	// protojson varies its spaces from build to build.
	var out bytes.Buffer
	if o.compact {
		err = json.Compact(&out, text)
	} else {
		err = json.Indent(&out, text, "", "  ")
	}
	return out.Bytes(), err
}

// failed returns the error for the status of err, with its details in JSON.
func (o *output) failed(err error) error {
	st := status.Convert(err)
	failed := &failedCall{Status: st}
	for _, detail := range st.Proto().GetDetails() {
		text, err := o.json(detail)
		if err != nil {
			text = []byte(clean(fmt.Sprintf("a detail of type %s cannot be printed: %s", detail.GetTypeUrl(), reason(err))))
		}
		failed.details = append(failed.details, string(text))
	}
	return failed
}

// lenient resolves types for printing. Types that the server does not describe have no fields, so
// that the rest of a message can be printed.
type lenient struct {
	protoresolve.TypeResolver
	warnings io.Writer
	warned   map[string]bool
}

// FindMessageByURL implements [protoregistry.MessageTypeResolver].
func (l lenient) FindMessageByURL(url string) (protoreflect.MessageType, error) {
	m, err := l.TypeResolver.FindMessageByURL(url)
	if errors.Is(err, protoregistry.NotFound) {
		if m, err = protoregistry.GlobalTypes.FindMessageByURL(url); err != nil {
			l.warn(fmt.Errorf("nothing describes %s", protoresolve.TypeNameFromURL(url)))
			return dynamicpb.NewMessageType(new(emptypb.Empty).ProtoReflect().Descriptor()), nil
		}
	} else if err == nil {
		l.warn(schema.Complete(m.Descriptor()))
	}
	return m, err
}

// warn prints once what is lacking, if anything is.
func (l lenient) warn(lacking error) {
	if lacking == nil || l.warned[lacking.Error()] {
		return
	}
	l.warned[lacking.Error()] = true
	fmt.Fprintf(l.warnings, "nearcall: %s, and so its fields are not printed\n", clean(lacking.Error()))
}
