package ecosystem

//lint:file-ignore SA1019 the first version of protoreflect is deprecated, but many programs still use it

import (
	"context"
	"fmt"
	"io"
	"testing"

	"github.com/jhump/protoreflect/desc"
	"github.com/jhump/protoreflect/dynamic"
	"github.com/jhump/protoreflect/dynamic/grpcdynamic"
	"github.com/jhump/protoreflect/grpcreflect"
	grpcdynamic2 "github.com/jhump/protoreflect/v2/grpcdynamic"
	grpcreflect2 "github.com/jhump/protoreflect/v2/grpcreflect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	pb "github.com/nearcall/nearcall/interop/ecosystem/internal/gatewaypb"
)

// A dynamic stub gets its descriptors by reflection and sends dynamic.Message values, which
// implement the old API and are not generated structs.
func TestDynamicStubCallsWithWhatReflectionTells(t *testing.T) {
	compare(t, func(t *testing.T, run runner) []string {
		conn := run(t, reflected(reflection.Register)).conn
		client := grpcreflect.NewClientAuto(t.Context(), conn)
		defer client.Reset()
		sd, err := client.ResolveService(service)
		if err != nil {
			t.Fatal(err)
		}
		method := sd.FindMethodByName
		stub := grpcdynamic.NewStub(conn)
		message := func(md *desc.MessageDescriptor, fields map[string]any) *dynamic.Message {
			m := dynamic.NewMessage(md)
			for k, v := range fields {
				m.SetFieldByName(k, v)
			}
			return m
		}
		item := func(price int64) *dynamic.Message {
			return message(method("Add").GetInputType(), map[string]any{"name": "tea", "price": price, "tags": map[string]string{"kind": "green"}})
		}
		var notes []string
		note := func(what string, m any, err error) {
			notes = append(notes, fmt.Sprintf("%s: %T %v, %v", what, m, m, err))
		}

		reply, err := stub.InvokeRpc(t.Context(), method("Add"), item(7))
		note("Add", reply, err)
		reply, err = stub.InvokeRpc(t.Context(), method("Get"), message(method("Get").GetInputType(), map[string]any{"name": "missing"}))
		note("Get", reply, err)
		if n := len(status.Convert(err).Details()); n != 1 {
			t.Errorf("the error has %d details, want 1", n)
		}

		list, err := stub.InvokeRpcServerStream(t.Context(), method("List"), message(method("List").GetInputType(), map[string]any{"count": int32(2)}))
		if err != nil {
			t.Fatal(err)
		}
		for err == nil {
			var m any
			m, err = list.RecvMsg()
			note("List", m, err)
		}

		imports, err := stub.InvokeRpcClientStream(t.Context(), method("Import"))
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			if err := imports.SendMsg(item(int64(i))); err != nil {
				t.Fatal(err)
			}
		}
		reply, err = imports.CloseAndReceive()
		note("Import", reply, err)

		haggle, err := stub.InvokeRpcBidiStream(t.Context(), method("Haggle"))
		if err != nil {
			t.Fatal(err)
		}
		m := item(50)
		if err := haggle.SendMsg(m); err != nil {
			t.Fatal(err)
		}
		m.SetFieldByName("name", "changed after it was sent")
		got, err := haggle.RecvMsg()
		note("Haggle", got, err)
		_ = haggle.CloseSend()
		if _, err := haggle.RecvMsg(); err != io.EOF {
			t.Errorf("after CloseSend: %v", err)
		}
		return notes
	})
}

// The same with the second version of protoreflect, which uses dynamicpb.
func TestDynamicpbMessagesReachGeneratedHandlers(t *testing.T) {
	compare(t, func(t *testing.T, run runner) []string {
		conn := run(t, reflected(reflection.Register)).conn
		client := grpcreflect2.NewClientAuto(t.Context(), conn)
		defer client.Reset()
		file, err := client.FileContainingSymbol(service)
		if err != nil {
			t.Fatal(err)
		}
		method := file.Services().ByName("Shop").Methods().ByName
		stub := grpcdynamic2.NewStub(conn, grpcdynamic2.WithResolver(&protoregistry.Types{}))
		item := func(price int64) proto.Message {
			m := dynamicpb.NewMessage(method("Add").Input())
			set(m, "name", protoreflect.ValueOf("tea"))
			set(m, "price", protoreflect.ValueOf(price))
			tags := m.Mutable(m.Descriptor().Fields().ByName("tags")).Map()
			tags.Set(protoreflect.ValueOf("kind").MapKey(), protoreflect.ValueOf("green"))
			return m
		}
		var notes []string
		note := func(what string, m proto.Message, err error) {
			b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(m)
			notes = append(notes, fmt.Sprintf("%s: %T %q, %v", what, m, b, err))
		}
		reply, err := stub.InvokeRpc(t.Context(), method("Add"), item(7))
		note("Add", reply, err)

		req := dynamicpb.NewMessage(method("List").Input())
		set(req, "count", protoreflect.ValueOf(int32(2)))
		list, err := stub.InvokeRpcServerStream(t.Context(), method("List"), req)
		if err != nil {
			t.Fatal(err)
		}
		for err == nil {
			var m proto.Message
			m, err = list.RecvMsg()
			note("List", m, err)
		}
		imports, err := stub.InvokeRpcClientStream(t.Context(), method("Import"))
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			if err := imports.SendMsg(item(int64(i))); err != nil {
				t.Fatal(err)
			}
		}
		reply, err = imports.CloseAndReceive()
		note("Import", reply, err)

		haggle, err := stub.InvokeRpcBidiStream(t.Context(), method("Haggle"))
		if err != nil {
			t.Fatal(err)
		}
		if err := haggle.SendMsg(item(50)); err != nil {
			t.Fatal(err)
		}
		m, err := haggle.RecvMsg()
		note("Haggle", m, err)
		_ = haggle.CloseSend()
		if _, err := haggle.RecvMsg(); err != io.EOF {
			t.Errorf("after CloseSend: %v", err)
		}
		return notes
	})
}

func set(m *dynamicpb.Message, field string, v protoreflect.Value) {
	m.Set(m.Descriptor().Fields().ByName(protoreflect.Name(field)), v)
}

// A server without generated code answers a client with it, and a client without.
func TestDynamicpbHandlersServeGeneratedClients(t *testing.T) {
	method := pb.File_shop_proto.Services().ByName("Shop").Methods().ByName("Add")
	echo := func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		item := dynamicpb.NewMessage(method.Input())
		if err := decode(item); err != nil {
			return nil, err
		}
		price := item.Get(method.Input().Fields().ByName("price")).Int()
		set(item, "price", protoreflect.ValueOf(2*price))
		return item, nil
	}
	serviceDesc := &grpc.ServiceDesc{ServiceName: service, HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{MethodName: "Add", Handler: echo}}}
	onEach(t, func(t *testing.T, run runner) {
		conn := run(t, program{register: func(srv reflection.GRPCServer) { srv.RegisterService(serviceDesc, struct{}{}) }}).conn
		sent := &pb.Item{Name: "tea", Price: 21, Tags: map[string]string{"kind": "green"}}
		want := proto.CloneOf(sent)
		want.Price = 42
		got, err := pb.NewShopClient(conn).Add(t.Context(), sent)
		if err != nil || !proto.Equal(got, want) {
			t.Errorf("a generated client got %v, %v; want %v", got, err, want)
		}
		b, err := proto.Marshal(sent)
		if err != nil {
			t.Fatal(err)
		}
		req, reply := dynamicpb.NewMessage(method.Input()), dynamicpb.NewMessage(method.Output())
		if err := proto.Unmarshal(b, req); err != nil {
			t.Fatal(err)
		}
		if err := conn.Invoke(t.Context(), pb.Shop_Add_FullMethodName, req, reply); err != nil || !proto.Equal(reply, want) {
			t.Errorf("a dynamic client got %v, %v; want %v", reply, err, want)
		}
	})
}
