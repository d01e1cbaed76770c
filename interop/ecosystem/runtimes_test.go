package ecosystem

import (
	"context"
	"net"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/loop"
)

// A program is a server and a client, independent of the platform.
type program struct {
	register func(reflection.GRPCServer)

	serverUnary  []grpc.UnaryServerInterceptor
	serverStream []grpc.StreamServerInterceptor
	serverStats  []stats.Handler
	clientUnary  []grpc.UnaryClientInterceptor
	clientStream []grpc.StreamClientInterceptor
	clientStats  []stats.Handler
}

// A running program has a client connection and a server. stop closes the connection
// and waits until the server has finished all calls. It may be called twice.
type running struct {
	conn grpc.ClientConnInterface
	stop func()
}

// A platform runs programs.
type platform struct {
	name string
	run  runner
}

type runner func(*testing.T, program) running

var oracle = platform{"grpc-go", runOnGRPC}

// near lists nearcall's ways to run handlers. Interceptors and stats handlers must
// not depend on whether a handler runs on its caller's goroutine or as a task of a
// loop.
var near = []platform{
	{"nearcall", runOnNearcall(onServer)},
	{"nearcall-inline", runOnNearcall(onServer, nearcall.HandlerPlacement(nearcall.Inline))},
	{"nearcall-workers", runOnNearcall(onServer, nearcall.HandlerPlacement(nearcall.Workers))},
	{"nearcall-loop", runOnNearcall(onLoop)},
}

// onServer and onLoop return the registrar for a program's services.
func onServer(_ *testing.T, srv *nearcall.Server) nearcall.Registrar { return srv }

func onLoop(t *testing.T, srv *nearcall.Server) nearcall.Registrar {
	l := loop.New()
	t.Cleanup(func() { _ = l.Close(context.Background()) }) // after the server: cleanups run last in, first out
	return srv.OnLoop(l)
}

// onEach runs f on grpc-go and on nearcall's platforms.
func onEach(t *testing.T, f func(t *testing.T, run runner)) {
	t.Helper()
	for _, p := range append([]platform{oracle}, near...) {
		t.Run(p.name, func(t *testing.T) {
			f(t, p.run)
		})
	}
}

// compare runs f on grpc-go and on nearcall's platforms. The notes that f returns
// must be the same.
func compare(t *testing.T, f func(t *testing.T, run runner) []string) {
	t.Helper()
	var want []string
	ok := t.Run(oracle.name, func(t *testing.T) {
		want = f(t, oracle.run)
		if len(want) == 0 {
			t.Fatal("nothing was noted, so nothing is compared")
		}
		for _, line := range want {
			t.Log(line)
		}
	})
	if !ok {
		return
	}
	for _, p := range near {
		t.Run(p.name, func(t *testing.T) {
			got := f(t, p.run)
			for i := range max(len(got), len(want)) {
				if g, w := at(got, i), at(want, i); g != w {
					t.Errorf("note %d differs:\n\there     %s\n\tgrpc-go  %s", i, g, w)
				}
			}
		})
	}
}

func at(notes []string, i int) string {
	if i < len(notes) {
		return notes[i]
	}
	return "(nothing)"
}

func runOnNearcall(at func(*testing.T, *nearcall.Server) nearcall.Registrar, opts ...nearcall.ServerOption) runner {
	return func(t *testing.T, p program) running {
		opts := append(slices.Clone(opts),
			nearcall.ChainUnaryInterceptor(p.serverUnary...), nearcall.ChainStreamInterceptor(p.serverStream...))
		for _, h := range p.serverStats {
			opts = append(opts, nearcall.StatsHandler(h))
		}
		srv := nearcall.NewServer(opts...)
		p.register(at(t, srv))

		dial := []nearcall.DialOption{
			nearcall.WithChainUnaryInterceptor(p.clientUnary...), nearcall.WithChainStreamInterceptor(p.clientStream...),
		}
		for _, h := range p.clientStats {
			dial = append(dial, nearcall.WithStatsHandler(h))
		}
		conn := srv.Client(dial...)
		stop := func() {
			_ = conn.Close()
			srv.GracefulStop()
		}
		t.Cleanup(stop)
		return running{conn, stop}
	}
}

func runOnGRPC(t *testing.T, p program) running {
	opts := []grpc.ServerOption{grpc.ChainUnaryInterceptor(p.serverUnary...), grpc.ChainStreamInterceptor(p.serverStream...)}
	for _, h := range p.serverStats {
		opts = append(opts, grpc.StatsHandler(h))
	}
	srv := grpc.NewServer(opts...)
	p.register(srv)
	lis := bufconn.Listen(64 << 10)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()

	dial := []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(p.clientUnary...), grpc.WithChainStreamInterceptor(p.clientStream...),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
	}
	for _, h := range p.clientStats {
		dial = append(dial, grpc.WithStatsHandler(h))
	}
	conn, err := grpc.NewClient("passthrough:bufconn", dial...)
	if err != nil {
		t.Fatal(err)
	}
	stop := func() {
		_ = conn.Close()
		srv.GracefulStop()
	}
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return running{conn, stop}
}
