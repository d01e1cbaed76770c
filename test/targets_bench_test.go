package test

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
)

// BenchmarkTargets compares an empty call through a resolver and a balancer with one without.
func BenchmarkTargets(b *testing.B) {
	lis := listenTCP(b)
	srv := serve(b, echo{})
	start(b, srv, lis)
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
	more := []string{lis.Addr().String()}
	for range 2 {
		l := listenTCP(b)
		start(b, serve(b, echo{}), l)
		more = append(more, l.Addr().String())
	}
	creds := nearcall.WithTransportCredentials(insecure.NewCredentials())
	rr := nearcall.WithDefaultServiceConfig(roundRobin)
	addr := lis.Addr().String()
	for _, row := range []struct {
		name, target string
		opts         []nearcall.DialOption
	}{
		{"nearcall/tcp", "tcp:" + addr, nil},
		{"nearcall/dns", "dns:///" + addr, nil},
		{"nearcall/round_robin", "list:///x", []nearcall.DialOption{rr, nearcall.WithResolvers(endpointsOf(more...))}},
		{"inproc/direct", "inproc:" + b.Name(), nil},
		{"inproc/resolved", "list:///x", []nearcall.DialOption{nearcall.WithResolvers(endpointsOf("inproc:" + b.Name()))}},
		{"gRPC/grpc-go", "grpc:" + ordinary.Addr().String(), nil},
		{"gRPC/dns", "dns:///" + ordinary.Addr().String(), nil},
	} {
		b.Run(row.name, func(b *testing.B) {
			client := dial(b, row.target, append(row.opts, creds)...)
			for range 20 {
				if _, err := client.UnaryCall(context.Background(), &testpb.SimpleRequest{}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := client.UnaryCall(context.Background(), &testpb.SimpleRequest{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
