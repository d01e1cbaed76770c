package engine

import (
	"context"
	"errors"

	"github.com/dop251/goja"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// A ScriptError is a value that a script has thrown, or rejected a promise with.
type ScriptError struct {
	status *status.Status
	stack  string
}

// Error returns the thrown value, and where it was thrown.
func (e *ScriptError) Error() string {
	if e.stack != "" {
		return e.stack
	}
	return e.status.Message()
}

// GRPCStatus returns the status for callers of a service. It does not contain the stack.
func (e *ScriptError) GRPCStatus() *status.Status { return e.status }

// thrown converts a thrown value to a Go error.
func (e *Engine) thrown(v goja.Value) error {
	described, err := e.own.describe(nil, v)
	if err != nil {
		return &ScriptError{status: status.New(codes.Unknown, "the script has thrown what cannot be looked at")}
	}
	pair := described.ToObject(e.vm)
	st := new(spb.Status)
	text := []byte(pair.Get("0").String())
	if err := protojson.Unmarshal(text, st); err != nil { // its details are invalid
		proto.Reset(st)
		_ = protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(text, st)
		st.Details = nil
	}
	return &ScriptError{status: status.FromProto(st), stack: pair.Get("1").String()}
}

// failed converts the error of a call of a JavaScript function to one for gRPC callers.
func (e *Engine) failed(err error) error {
	var interrupted *goja.InterruptedError
	var overflow *goja.StackOverflowError
	var exception *goja.Exception
	switch {
	case err == nil:
		return nil
	case errors.As(err, &interrupted):
		return status.Error(codes.Unavailable, errStopped.Error())
	case errors.As(err, &overflow):
		return status.Error(codes.ResourceExhausted, "the script's calls go too deep")
	case errors.As(err, &exception):
		return e.thrown(exception.Value())
	}
	return statusOf(err).Err()
}

// toThrow converts err to a StatusError of the script.
func (e *Engine) toThrow(err error) goja.Value {
	st := statusOf(err)
	text, err := toJSON.Marshal(st.Proto())
	if err != nil { // details of a type that this program does not know
		text, err = toJSON.Marshal(&spb.Status{Code: int32(st.Code()), Message: st.Message()})
	}
	if err != nil {
		return e.vm.NewGoError(err)
	}
	made, err := e.own.statusError(nil, e.vm.ToValue(string(text)))
	if err != nil {
		return e.vm.NewGoError(err)
	}
	return made
}

func statusOf(err error) *status.Status {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		if _, ok := status.FromError(err); !ok {
			return status.FromContextError(err)
		}
	}
	return status.Convert(err)
}
