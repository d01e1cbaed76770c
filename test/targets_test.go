package test

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"runtime"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/leak"
)

const roundRobin = `{"loadBalancingConfig":[{"round_robin":{}}]}`

// endpointsOf returns a resolver whose endpoints have one address each.
func endpointsOf(addrs ...string) *manual.Resolver {
	r := manual.NewBuilderWithScheme("list")
	r.InitialState(stateOf(addrs...))
	return r
}

func stateOf(addrs ...string) resolver.State {
	var s resolver.State
	for _, a := range addrs {
		s.Endpoints = append(s.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: a}}})
	}
	return s
}

// served counts calls by the network and the address that they come from.
func served(t *testing.T, client testpb.TestServiceClient, calls int) map[string]int {
	t.Helper()
	all := make(map[string]int)
	for range calls {
		var p peer.Peer
		if _, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{}, grpc.Peer(&p)); err != nil {
			t.Fatal(err)
		}
		all[p.Addr.Network()]++
	}
	return all
}

// Each endpoint is called over the path that its address names, and servers that speak only gRPC are
// called by gRPC, in one client.
func TestEndpointsAreCalledOverTheirPaths(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has shared memory")
	}
	hold(t)
	serveAt := func(target string) string {
		lis, err := nearcall.Listen(target)
		if err != nil {
			t.Fatal(err)
		}
		start(t, serve(t, echo{}), lis)
		return target
	}
	lis := listenTCP(t)
	start(t, serve(t, echo{}), lis)
	ordinary := listenTCP(t)
	startGRPC(t, ordinary, echo{unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		return &testpb.SimpleResponse{Username: "ordinary"}, nil
	}})
	inproc := serveAt("inproc:" + t.Name())
	unix := serveAt("unix:" + filepath.Join(t.TempDir(), "s"))
	r := endpointsOf(inproc, unix, lis.Addr().String(), ordinary.Addr().String())
	client := dial(t, "list:///any", nearcall.WithResolvers(r), nearcall.WithTransportCredentials(insecureCreds()), nearcall.WithDefaultServiceConfig(roundRobin))
	leak.Eventually(t, "all endpoints are called", func() bool {
		n := served(t, client, 40)
		return n["inproc"] == 10 && n["shm"] == 10 && n["tcp"] == 20
	})
	for range 4 {
		if err := callAll(t.Context(), client); err != nil {
			t.Fatal(err)
		}
	}
}

// A target without a scheme, and those of grpc-go's resolvers, work as in grpc-go, with servers of
// both kinds.
func TestTargetsOfGRPC(t *testing.T) {
	hold(t)
	for _, kind := range []string{"nearcall", "gRPC"} {
		lis := listenTCP(t)
		if kind == "nearcall" {
			start(t, serve(t, echo{}), lis)
		} else {
			startGRPC(t, lis, echo{})
		}
		addr := lis.Addr().String()
		_, port, _ := net.SplitHostPort(addr)
		for _, target := range []string{addr, "grpc:" + addr, "dns:///" + addr, "passthrough:///" + addr, "localhost:" + port, ":" + port} {
			t.Run(fmt.Sprint(kind, " ", target), func(t *testing.T) {
				client := dial(t, target, nearcall.WithTransportCredentials(insecureCreds()))
				for range 3 {
					if err := callAll(t.Context(), client); err != nil {
						t.Fatal(err)
					}
				}
			})
		}
	}
}

// A call fails with the picker's error if no endpoint can be reached.
func TestATargetThatNobodyServes(t *testing.T) {
	hold(t)
	client := dial(t, "list:///any", nearcall.WithResolvers(endpointsOf("inproc:nobody")), nearcall.WithTransportCredentials(insecureCreds()))
	err := <-invoke(t.Context(), client)
	wantCode(t, err, codes.Unavailable)
	t.Log(err)
}

// Tests often call their servers over package bufconn.
func TestTargetsOverBufconn(t *testing.T) {
	for name, srv := range map[string]interface {
		Serve(net.Listener) error
		Stop()
		grpc.ServiceRegistrar
	}{"nearcall": nearcall.NewServer(), "gRPC": grpc.NewServer()} {
		t.Run(name, func(t *testing.T) {
			hold(t)
			lis := bufconn.Listen(1 << 16)
			testpb.RegisterTestServiceServer(srv, echo{})
			served := make(chan struct{})
			go func() {
				defer close(served)
				_ = srv.Serve(lis)
			}()
			client := dial(t, "passthrough:///bufnet", nearcall.WithTransportCredentials(insecure.NewCredentials()),
				nearcall.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
			for range 10 {
				reply, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: &testpb.Payload{Body: make([]byte, 1<<18)}})
				if err != nil || len(reply.GetPayload().GetBody()) != 1<<18 {
					t.Fatal(len(reply.GetPayload().GetBody()), err)
				}
			}
			srv.Stop()
			<-served
		})
	}
}
