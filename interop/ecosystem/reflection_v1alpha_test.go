package ecosystem

//lint:file-ignore SA1019 v1alpha is deprecated, but many clients still use it

import (
	"slices"
	"testing"

	"google.golang.org/grpc/reflection"
	v1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
)

func TestReflectionV1AlphaListsServices(t *testing.T) {
	onEach(t, func(t *testing.T, run runner) {
		stream, err := v1alpha.NewServerReflectionClient(run(t, reflected(reflection.Register)).conn).ServerReflectionInfo(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		err = stream.Send(&v1alpha.ServerReflectionRequest{MessageRequest: &v1alpha.ServerReflectionRequest_ListServices{}})
		if err != nil {
			t.Fatal(err)
		}
		reply, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, s := range reply.GetListServicesResponse().GetService() {
			names = append(names, s.GetName())
		}
		if want := []string{reflectionV1, reflectionV1alpha, service}; !slices.Equal(names, want) {
			t.Errorf("the services are %q, want %q", names, want)
		}
		_ = stream.CloseSend()
		if _, err := drain(stream.Recv); err != nil {
			t.Error(err)
		}
	})
}
