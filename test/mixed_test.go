package test

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/chaos"
	"github.com/nearcall/nearcall/internal/testing/looptest"
)

// A mixedPath is a way from [chaos.Mixed] to its service.
type mixedPath struct {
	target string // "" in process
	server []nearcall.ServerOption
	client []nearcall.DialOption
	on     *looptest.Kind // the service's loop, if any
	back   bool           // the server calls the client
}

func mixedPaths(t *testing.T) map[string]mixedPath {
	certs := newCertificates(t)
	http1 := certs.server(nil)
	http1.NextProtos = nil
	paths := map[string]mixedPath{
		"inproc":            {},
		"inproc, a loop":    {on: &looptest.Baton},
		"inproc, backwards": {back: true},
		"ws":                {target: "ws://127.0.0.1:0/calls"},
		"tls": {
			target: "tcp:127.0.0.1:0",
			server: []nearcall.ServerOption{nearcall.Creds(credentials.NewTLS(certs.server(nil)))},
			client: []nearcall.DialOption{nearcall.WithTransportCredentials(credentials.NewTLS(certs.client(nil)))},
		},
		"wss": {
			target: "wss://127.0.0.1:0/calls",
			server: []nearcall.ServerOption{nearcall.Creds(nearcall.NewTLS(http1))},
			client: []nearcall.DialOption{nearcall.WithTransportCredentials(nearcall.NewTLS(certs.client(nil)))},
		},
	}
	for _, network := range available(t, networks("unix", "tcp")...) {
		path := mixedPath{target: targetFor(t, network), client: over(network)}
		paths[network] = path
		small := path
		small.target = targetFor(t, network)
		small.server = []nearcall.ServerOption{nearcall.InitialWindowSize(1), nearcall.MaxSharedMemory(4 << 20)}
		small.client = over(network, nearcall.WithInitialWindowSize(1), nearcall.WithMaxSharedMemory(1<<20))
		paths[network+", small windows and little memory"] = small
		path.target = targetFor(t, network)
		path.back = true
		paths[network+", backwards"] = path
	}
	paths["tcp, a loop"] = mixedPath{target: "tcp:127.0.0.1:0", on: &looptest.Coroutines}
	return paths
}

// TestStreamsOfMixedSizes makes streams of messages of 0 bytes to 5 MB over each path, see
// [chaos.Mixed].
func TestStreamsOfMixedSizes(t *testing.T) {
	for name, path := range mixedPaths(t) {
		t.Run(name, func(t *testing.T) { chaos.Mixed(t, testpb.NewTestServiceClient(path.open(t)), chaos.Mixtures(t)) })
	}
}

// open returns a connection to a [chaos.MixedService].
func (p mixedPath) open(t *testing.T) grpc.ClientConnInterface {
	limit, client := nearcall.MaxRecvMsgSize(chaos.MaxMixed), p.client
	srv := nearcall.NewServer(append(p.server, limit)...)
	t.Cleanup(srv.Stop)
	service := testpb.TestServiceServer(&chaos.MixedService{})
	peer := make(chan grpc.ClientConnInterface, 1)
	if p.back {
		own := nearcall.NewServer(limit)
		t.Cleanup(own.Stop)
		testpb.RegisterTestServiceServer(own, service)
		client = append(client, nearcall.WithServer(own))
		service = echo{unary: func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			peer <- nearcall.PeerConn(ctx)
			<-ctx.Done()
			return nil, ctx.Err()
		}}
	}
	at := grpc.ServiceRegistrar(srv)
	if p.on != nil {
		at = srv.OnLoop(newLoop(t, *p.on))
	}
	testpb.RegisterTestServiceServer(at, service)
	conn := srv.Client(client...)
	if p.target != "" {
		lis := listen(t, p.target)
		start(t, srv, lis)
		var err error
		if conn, err = nearcall.NewClient(lis.Target(), client...); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = conn.Close() })
	if !p.back {
		return conn
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := invoke(ctx, testpb.NewTestServiceClient(conn))
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return outcome(t, "the call with the peer", peer)
}
