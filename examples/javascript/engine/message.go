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

// messageType returns the generated type of a message, or a dynamic one if the program does
// not contain the generated one.
func messageType(d protoreflect.MessageDescriptor) protoreflect.MessageType {
	if t, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName()); err == nil {
		return t
	}
	return dynamicpb.NewMessageType(d)
}

// toJSON emits all fields without presence, so that scripts never read undefined from them.
var toJSON = protojson.MarshalOptions{EmitDefaultValues: true}

// toScript converts m to an object of the script.
func (e *Engine) toScript(m proto.Message) (goja.Value, error) {
	text, err := toJSON.Marshal(m)
	if err != nil {
		return nil, err
	}
	return e.own.parse(nil, e.vm.ToValue(string(text)))
}

// fromScript sets m's fields from v.
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

// raise throws err in the script that called the current Go function.
func (e *Engine) raise(err error) {
	var thrown *goja.Exception
	var interrupted *goja.InterruptedError
	if errors.As(err, &interrupted) || errors.As(err, &thrown) {
		panic(err)
	}
	panic(e.vm.NewTypeError(err.Error()))
}
