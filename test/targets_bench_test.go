package test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"

	"github.com/nearcall/nearcall"
)

// BenchmarkTargets compares an empty call through a resolver and a balancer with one without.
func BenchmarkTargets(b *testing.B) {
	lis := listenTCP(b)
	start(b, serve(b, echo{}), lis)
	ordinary := listenTCP(b)
	old := grpc.NewServer()
	testpb.RegisterTestServiceServer(old, echo{})
	go old.Serve(ordinary)
	b.Cleanup(old.Stop)
	inproc, err := nearcall.Listen("inproc:" + b.Name())
	if err != nil {
		b.Fatal(err)
	}
	start(b, serve(b, echo{}), inproc)
	var far []string // servers that offer nothing nearer than TCP
	for range 3 {
		l := listenTCP(b)
		start(b, serve(b, echo{}, nearcall.DisableSharedMemory(), nearcall.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: time.Hour})), l)
		far = append(far, l.Addr().String())
	}
	creds := nearcall.WithTransportCredentials(insecure.NewCredentials())
	rr := nearcall.WithDefaultServiceConfig(roundRobin)
	for _, row := range []struct {
		name, target string
		opts         []nearcall.DialOption
		turns        []string // more targets, which are called in turn
	}{
		{"tcp/direct", "tcp:" + far[0], nil, nil},
		{"tcp/dns", "dns:///" + far[0], nil, nil},
		{"tcp/in_turn", "tcp:" + far[0], nil, []string{"tcp:" + far[1], "tcp:" + far[2]}},
		{"tcp/round_robin", "list:///x", []nearcall.DialOption{rr, nearcall.WithResolvers(endpointsOf(far...))}, nil},
		{"inproc/direct", "inproc:" + b.Name(), nil, nil},
		{"inproc/resolved", "list:///x", []nearcall.DialOption{nearcall.WithResolvers(endpointsOf("inproc:" + b.Name()))}, nil},
		{"inproc/dns", "dns:///" + lis.Addr().String(), nil, nil},
		{"gRPC/grpc-go", "grpc:" + ordinary.Addr().String(), nil, nil},
		{"gRPC/dns", "dns:///" + ordinary.Addr().String(), nil, nil},
	} {
		b.Run(row.name, func(b *testing.B) {
			clients := []testpb.TestServiceClient{dial(b, row.target, append(row.opts, creds)...)}
			for _, target := range row.turns {
				clients = append(clients, dial(b, target, append(row.opts, creds)...))
			}
			for i := range 20 {
				if _, err := clients[i%len(clients)].UnaryCall(context.Background(), &testpb.SimpleRequest{}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, err := clients[i%len(clients)].UnaryCall(context.Background(), &testpb.SimpleRequest{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
