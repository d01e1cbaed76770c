package test

import (
	"context"
	"io"
	"net"
	"testing"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
)

// BenchmarkGRPCClients measures calls of an ordinary gRPC client to a grpc.Server and to a
// nearcall server.
func BenchmarkGRPCClients(b *testing.B) {
	plain := grpc.NewServer()
	testpb.RegisterTestServiceServer(plain, echo{})
	for _, server := range []struct {
		name  string
		serve func(net.Listener) error
		stop  func()
	}{
		{"grpc-go", plain.Serve, plain.Stop},
		{"nearcall", serve(b, echo{}).Serve, func() {}},
	} {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		go server.serve(lis)
		client := dialGRPC(b, lis)
		b.Run("unary/"+server.name, func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				if _, err := client.UnaryCall(context.Background(), &testpb.SimpleRequest{Payload: payload(32)}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("stream/"+server.name, func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				s, err := client.StreamingOutputCall(context.Background(), &testpb.StreamingOutputCallRequest{Payload: payload(32)})
				if err != nil {
					b.Fatal(err)
				}
				for {
					if _, err := s.Recv(); err == io.EOF {
						break
					} else if err != nil {
						b.Fatal(err)
					}
				}
			}
		})
		server.stop()
	}
}
