package engine

import (
	"errors"
	"fmt"

	"github.com/dop251/goja"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
)

// messageType returns the generated type of a message, and one made up where the
// program has none.
func messageType(d protoreflect.MessageDescriptor) protoreflect.MessageType {
	if t, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName()); err == nil {
		return t
	}
	return dynamicpb.NewMessageType(d)
}

// toJSON emits all fields that have no presence: a script that reads one finds it.
var toJSON = protojson.MarshalOptions{EmitDefaultValues: true}

// toScript returns m as an object of the script.
func (e *Engine) toScript(m proto.Message) (goja.Value, error) {
	text, err := toJSON.Marshal(m)
	if err != nil {
		return nil, err
	}
	return e.own.parse(nil, e.vm.ToValue(string(text)))
}

// fromScript fills m with what v has.
func (e *Engine) fromScript(v goja.Value, m proto.Message) error {
	name := m.ProtoReflect().Descriptor().FullName()
	if _, ok := v.(*goja.Object); !ok {
		return fmt.Errorf("%v is no %s: an object is wanted", v, name)
	}
	text, err := e.own.stringify(nil, v)
	if err != nil {
		return err
	}
	if goja.IsUndefined(text) {
		return fmt.Errorf("a function is no %s: an object is wanted", name)
	}
	if err := protojson.Unmarshal([]byte(text.String()), m); err != nil {
		return fmt.Errorf("an object is no %s: %w", name, err)
	}
	return nil
}

// raise throws err into the script that has called the caller.
func (e *Engine) raise(err error) {
	var thrown *goja.Exception
	var interrupted *goja.InterruptedError
	if errors.As(err, &interrupted) || errors.As(err, &thrown) {
		panic(err)
	}
	panic(e.vm.NewTypeError(err.Error()))
}
