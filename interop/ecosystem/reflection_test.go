package ecosystem

import (
	"slices"
	"testing"

	"github.com/jhump/protoreflect/grpcreflect"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/reflection"
	v1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	v1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
)

const (
	reflectionV1      = "grpc.reflection.v1.ServerReflection"
	reflectionV1alpha = "grpc.reflection.v1alpha.ServerReflection"
)

// reflected returns a program with a shop, and with reflection as register adds it.
func reflected(register func(reflection.GRPCServer)) program {
	return program{register: func(srv reflection.GRPCServer) {
		registerShop(&shop{})(srv)
		register(srv)
	}}
}

func TestReflectionV1ListsServicesAndFindsFiles(t *testing.T) {
	onEach(t, func(t *testing.T, run runner) {
		stream, err := v1.NewServerReflectionClient(run(t, reflected(reflection.RegisterV1)).conn).ServerReflectionInfo(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ask := func(req *v1.ServerReflectionRequest) *v1.ServerReflectionResponse {
			t.Helper()
			if err := stream.Send(req); err != nil {
				t.Fatal(err)
			}
			reply, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			return reply
		}
		var names []string
		for _, s := range ask(&v1.ServerReflectionRequest{MessageRequest: &v1.ServerReflectionRequest_ListServices{}}).GetListServicesResponse().GetService() {
			names = append(names, s.GetName())
		}
		if want := []string{reflectionV1, service}; !slices.Equal(names, want) {
			t.Errorf("the services are %q, want %q", names, want)
		}

		files := ask(&v1.ServerReflectionRequest{MessageRequest: &v1.ServerReflectionRequest_FileContainingSymbol{
			FileContainingSymbol: service + ".Haggle",
		}}).GetFileDescriptorResponse().GetFileDescriptorProto()
		if len(files) == 0 {
			t.Fatal("there is no file for a method")
		}
		file := &descriptorpb.FileDescriptorProto{}
		if err := proto.Unmarshal(files[0], file); err != nil || file.GetName() != "shop.proto" {
			t.Errorf("the method's file is %q, %v", file.GetName(), err)
		}
		refusal := ask(&v1.ServerReflectionRequest{MessageRequest: &v1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "no.such.Thing"}})
		if code := refusal.GetErrorResponse().GetErrorCode(); code != int32(codes.NotFound) {
			t.Errorf("of an unknown symbol it says %v", refusal)
		}

		if err := stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if n, err := drain(stream.Recv); n != 0 || err != nil {
			t.Errorf("after CloseSend: %d messages, %v", n, err)
		}
	})
}

// The client tries v1 first, and gets Unimplemented if the server has only v1alpha.
func TestProtoreflectsClientFindsTheVersionThatIsServed(t *testing.T) {
	onlyV1alpha := func(srv reflection.GRPCServer) {
		v1alpha.RegisterServerReflectionServer(srv, reflection.NewServer(reflection.ServerOptions{Services: srv}))
	}
	for name, register := range map[string]func(reflection.GRPCServer){
		"both": reflection.Register, "v1": reflection.RegisterV1, "v1alpha": onlyV1alpha,
	} {
		t.Run(name, func(t *testing.T) {
			compare(t, func(t *testing.T, run runner) []string {
				client := grpcreflect.NewClientAuto(t.Context(), run(t, reflected(register)).conn)
				defer client.Reset()
				names, err := client.ListServices()
				if err != nil {
					t.Fatal(err)
				}
				sd, err := client.ResolveService(service)
				if err != nil {
					t.Fatal(err)
				}
				for _, m := range sd.GetMethods() {
					names = append(names, m.String())
				}
				_, err = client.ResolveMessage("no.such.Message")
				if !grpcreflect.IsElementNotFoundError(err) {
					t.Errorf("of an unknown message it says %v", err)
				}
				return append(names, err.Error())
			})
		})
	}
}
