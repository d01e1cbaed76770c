package test

import (
	"context"
	"testing"

	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
)

// BenchmarkPeer measures, over each path and on one connection, a unary call, a call that a
// server makes to its client without being called, and a call during which the handler calls
// back. The unary call of a client that does not serve is there to compare.
func BenchmarkPeer(b *testing.B) {
	for _, network := range append([]string{"inproc"}, networks("unix", "tcp")...) {
		b.Run(network, func(b *testing.B) {
			plain, _ := benchPeers(b, network, nil)
			client, peer := benchPeers(b, network, serve(b, echo{}))
			b.Run("unary of a plain client", func(b *testing.B) { benchCalls(b, plain, false) })
			b.Run("unary", func(b *testing.B) { benchCalls(b, client, false) })
			b.Run("callback", func(b *testing.B) { benchCalls(b, peer, false) })
			b.Run("unary with a callback", func(b *testing.B) { benchCalls(b, client, true) })
		})
	}
}

func benchCalls(b *testing.B, client testpb.TestServiceClient, back bool) {
	b.ReportAllocs()
	in := &testpb.SimpleRequest{FillUsername: back}
	for range b.N {
		if _, err := client.UnaryCall(context.Background(), in); err != nil {
			b.Fatal(err)
		}
	}
}

// benchPeers connects a client that has the server own, if that is not nil, and returns the
// server's connection to it as well.
func benchPeers(b *testing.B, network string, own *nearcall.Server) (client, peer testpb.TestServiceClient) {
	b.Helper()
	conns := make(chan testpb.TestServiceClient, 1)
	srv := serve(b, echo{unary: func(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		switch {
		case in.FillUsername:
			return callPeer(ctx).UnaryCall(ctx, &testpb.SimpleRequest{})
		case in.FillOauthScope:
			conns <- callPeer(ctx)
		}
		return &testpb.SimpleResponse{}, nil
	}})
	var opts []nearcall.DialOption
	if own != nil {
		opts = append(opts, nearcall.WithServer(own))
	}
	conn := benchConn(b, network, srv, opts)
	b.Cleanup(func() { _ = conn.Close() })
	client = testpb.NewTestServiceClient(conn)
	if _, err := client.UnaryCall(context.Background(), &testpb.SimpleRequest{FillOauthScope: true}); err != nil {
		b.Fatal(err)
	}
	return client, <-conns
}

func benchConn(b *testing.B, network string, srv *nearcall.Server, opts []nearcall.DialOption) *nearcall.ClientConn {
	b.Helper()
	if network == "inproc" {
		return srv.Client(opts...)
	}
	lis, err := nearcall.Listen(targetFor(b, network))
	if err != nil {
		b.Fatal(err)
	}
	go srv.Serve(lis)
	conn, err := nearcall.NewClient(lis.Target(), over(network, opts...)...)
	if err != nil {
		b.Fatal(err)
	}
	return conn
}
