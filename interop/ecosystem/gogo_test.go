package ecosystem

import (
	"context"
	"fmt"
	"testing"

	gogo "github.com/gogo/protobuf/proto"
	both "github.com/gogo/protobuf/test/combos/both"
	"github.com/gogo/protobuf/test/required"
	"github.com/gogo/protobuf/types"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// A mirror is a service that answers each message with handle's result. It uses the type
// T for its messages, as generated code does.
func mirror[T any](handle func(*T) (*T, error)) func(reflection.GRPCServer) {
	unary := func(_ any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		in := new(T)
		if err := decode(in); err != nil {
			return nil, err
		}
		return handle(in)
	}
	stream := func(_ any, ss grpc.ServerStream) error {
		for {
			in := new(T)
			if err := ss.RecvMsg(in); err != nil {
				return nil
			}
			out, err := handle(in)
			if err != nil {
				return err
			}
			if err := ss.SendMsg(out); err != nil {
				return err
			}
		}
	}
	desc := &grpc.ServiceDesc{
		ServiceName: "Mirror", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Unary", Handler: unary}},
		Streams: []grpc.StreamDesc{{StreamName: "Stream", Handler: stream, ClientStreams: true, ServerStreams: true}},
	}
	return func(srv reflection.GRPCServer) { srv.RegisterService(desc, struct{}{}) }
}

// reflect sends m with a unary call and three times on a stream.
func reflect[T any](t *testing.T, conn grpc.ClientConnInterface, m *T, opts ...grpc.CallOption) (replies []*T) {
	t.Helper()
	unary := new(T)
	if err := conn.Invoke(t.Context(), "/Mirror/Unary", m, unary, opts...); err != nil {
		t.Fatalf("unary: %v", err)
	}
	replies = append(replies, unary)
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/Mirror/Stream", opts...)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := stream.SendMsg(m); err != nil {
			t.Fatal(err)
		}
		reply := new(T)
		if err := stream.RecvMsg(reply); err != nil {
			t.Fatalf("stream: %v", err)
		}
		replies = append(replies, reply)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if n, err := drain(func() (any, error) { return nil, stream.RecvMsg(new(T)) }); n != 0 || err != nil {
		t.Fatalf("after CloseSend: %d, %v", n, err)
	}
	return replies
}

func same[T any](m *T) (*T, error) { return m, nil }

// It tests all combinations of the handler's and the caller's message type.
func TestGogoMessagesOnEitherSide(t *testing.T) {
	onEach(t, func(t *testing.T, run runner) {
		handlers := map[string]func(reflection.GRPCServer){
			"gogo": mirror(func(m *types.StringValue) (*types.StringValue, error) {
				return &types.StringValue{Value: m.Value + "!"}, nil
			}),
			"protobuf-go": mirror(func(m *wrapperspb.StringValue) (*wrapperspb.StringValue, error) {
				return &wrapperspb.StringValue{Value: m.Value + "!"}, nil
			}),
		}
		for name, register := range handlers {
			conn := run(t, program{register: register}).conn
			for _, reply := range reflect(t, conn, &types.StringValue{Value: "tea"}) {
				if reply.Value != "tea!" {
					t.Errorf("a %s handler told a gogo client %q", name, reply.Value)
				}
			}
			for _, reply := range reflect(t, conn, &wrapperspb.StringValue{Value: "tea"}) {
				if reply.Value != "tea!" {
					t.Errorf("a %s handler told a protobuf-go client %q", name, reply.Value)
				}
			}
		}
	})
}

func TestGogoStructsOnEitherSide(t *testing.T) {
	list := &types.ListValue{Values: []*types.Value{{Kind: &types.Value_NumberValue{NumberValue: 1}}, {Kind: &types.Value_NullValue{}}}}
	sent := &types.Struct{Fields: map[string]*types.Value{
		"name": {Kind: &types.Value_StringValue{StringValue: "tea"}},
		"list": {Kind: &types.Value_ListValue{ListValue: list}},
	}}
	sentToo, err := structpb.NewStruct(map[string]any{"name": "tea", "list": []any{1, nil}})
	if err != nil {
		t.Fatal(err)
	}
	onEach(t, func(t *testing.T, run runner) {
		for _, register := range []func(reflection.GRPCServer){mirror(same[types.Struct]), mirror(same[structpb.Struct])} {
			conn := run(t, program{register: register}).conn
			for _, reply := range reflect(t, conn, sent) {
				if !reply.Equal(sent) {
					t.Errorf("a gogo client sent %v and got %v", sent, reply)
				}
			}
			for _, reply := range reflect(t, conn, sentToo) {
				if !proto.Equal(reply, sentToo) {
					t.Errorf("a protobuf-go client sent %v and got %v", sentToo, reply)
				}
			}
		}
	})
}

// gogoCodec marshals with gogo's own library, which supports gogo's extensions.
type gogoCodec struct{}

func (gogoCodec) Name() string                    { return "gogo" }
func (gogoCodec) Marshal(v any) ([]byte, error)   { return gogo.Marshal(v.(gogo.Message)) }
func (gogoCodec) Unmarshal(b []byte, v any) error { return gogo.Unmarshal(b, v.(gogo.Message)) }

func init() { encoding.RegisterCodec(gogoCodec{}) }

// Only gogo's library supports custom types and message fields that are not pointers.
func TestGogoExtensionsSurviveGogosCodec(t *testing.T) {
	custom := both.NewPopulatedNidOptCustom(fixed{}, false)
	structs := &both.NidRepStruct{
		Field3: []both.NidOptNative{{Field1: 1, Field14: "tea"}, {Field15: []byte("milk")}},
		Field8: []both.NidOptNative{{Field6: 7}},
	}
	onEach(t, func(t *testing.T, run runner) {
		conn := run(t, program{register: mirror(same[both.NidOptCustom])}).conn
		for _, reply := range reflect(t, conn, custom, grpc.CallContentSubtype("gogo")) {
			if !reply.Equal(custom) {
				t.Errorf("sent %v and got %v", custom, reply)
			}
		}
		conn = run(t, program{register: mirror(same[both.NidRepStruct])}).conn
		for _, reply := range reflect(t, conn, structs, grpc.CallContentSubtype("gogo")) {
			if !reply.Equal(structs) {
				t.Errorf("sent %v and got %v", structs, reply)
			}
		}
	})
}

// With gRPC's default codec, message fields that are not pointers work. Custom types
// make protobuf-go panic on the sender's goroutine. Other calls are not affected.
func TestGogoExtensionsByTheDefaultCodec(t *testing.T) {
	structs := &both.NidOptStruct{Field3: both.NidOptNative{Field1: 1, Field14: "tea"}, Field15: []byte("milk")}
	compare(t, func(t *testing.T, run runner) []string {
		conn := run(t, program{register: mirror(same[both.NidOptStruct])}).conn
		try := func(m, reply any) string {
			return fmt.Sprintf("%T: %v %v", m, invoke(t, conn, m, reply), reply)
		}
		return []string{
			try(structs, new(both.NidOptStruct)),
			try(both.NewPopulatedNidOptCustom(fixed{}, false), new(both.NidOptStruct)),
			try(structs, new(both.NidOptStruct)),
		}
	})
}

// invoke makes a call and converts a panic to an error.
func invoke(t *testing.T, conn grpc.ClientConnInterface, m, reply any) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	return conn.Invoke(t.Context(), "/Mirror/Unary", m, reply)
}

// fixed is a random source that always returns the same number.
type fixed struct{}

func (fixed) Float64() float64 { return 0.5 }
func (fixed) Float32() float32 { return 0.5 }
func (fixed) Int63() int64     { return 63 }
func (fixed) Int31() int32     { return 31 }
func (fixed) Uint32() uint32   { return 32 }
func (fixed) Intn(n int) int   { return n / 2 }

// An invalid message is rejected, passes, or makes gogo panic, as on grpc-go.
func TestGogoMessagesThatAreNotValid(t *testing.T) {
	compare(t, func(t *testing.T, run runner) []string {
		var notes []string
		try := func(what string, register func(reflection.GRPCServer), req, reply any) {
			err := invoke(t, run(t, program{register: register}).conn, req, reply)
			notes = append(notes, fmt.Sprintf("%s: %v", what, err))
		}
		try("a required field is missing", mirror(same[required.RequiredExample]), &required.RequiredExample{}, new(required.RequiredExample))
		try("text that is not UTF-8", mirror(same[types.StringValue]), &types.StringValue{Value: "\xff"}, new(types.StringValue))
		try("text that is not UTF-8, to protobuf-go", mirror(same[wrapperspb.StringValue]), &types.StringValue{Value: "\xff"}, new(types.StringValue))
		try("nil", mirror(same[types.StringValue]), (*types.StringValue)(nil), new(types.StringValue))
		refuse := func(*types.StringValue) (*types.StringValue, error) {
			return nil, status.Error(codes.Aborted, "no")
		}
		try("an error", mirror(refuse), &types.StringValue{Value: "tea"}, new(types.StringValue))
		return notes
	})
}

// Gogo messages are copied too: neither side sees later changes to the other's message.
func TestGogoMessagesAreCopied(t *testing.T) {
	onEach(t, func(t *testing.T, run runner) {
		kept := make(chan *types.BytesValue, 1)
		conn := run(t, program{register: mirror(func(m *types.BytesValue) (*types.BytesValue, error) {
			kept <- m
			return m, nil
		})}).conn
		sent, reply := &types.BytesValue{Value: []byte("tea")}, &types.BytesValue{}
		if err := conn.Invoke(t.Context(), "/Mirror/Unary", sent, reply); err != nil {
			t.Fatal(err)
		}
		sent.Value[0], reply.Value[1] = 'p', 'o'
		if got := <-kept; string(got.Value) != "tea" {
			t.Errorf("the handler's message became %q", got.Value)
		}
		if string(sent.Value) != "pea" || string(reply.Value) != "toa" {
			t.Errorf("the caller's messages became %q and %q", sent.Value, reply.Value)
		}
	})
}
