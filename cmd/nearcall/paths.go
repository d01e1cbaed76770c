package main

import (
	"context"
	"errors"
	"net"
	"runtime"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/socketfile"
)

// A path is a way from a client to a service.
type path struct {
	name  string
	label string // in the summary, which shows paths that a program can choose from; "" for others
	open  func(testpb.TestServiceServer) (connection, error)
}

// A connection is an opened path. close ends everything that open started.
type connection struct {
	path   string
	ctx    context.Context // of the calls
	client testpb.TestServiceClient
	close  func() error
}

// paths are the paths within a process, without the baseline. Inlining handlers makes a difference
// only with contexts that can be cancelled.
var paths = []path{
	{"grpc-go over TCP loopback", "grpc-go, TCP", overSocket(byGRPC, "tcp:127.0.0.1:0")},
	{"in process", "nearcall", inProcess(false)},
	{"in process, cancellable context", "", inProcess(true)},
	{"in process by name", "", overSocket(byNearcall, "inproc:tour")},
	{"in process, inline handlers", "", inProcess(true, nearcall.HandlerPlacement(nearcall.Inline))},
}

// A stretch is a part of the tour: some paths and their baseline.
type stretch struct {
	to       string // where the service is, for the summary
	paths    []path
	baseline path
	share    float64      // of the tour's time
	missing  func() error // returns why the system lacks these paths, or nil
}

// all returns the paths, the baseline first.
func (s stretch) all() []path { return append([]path{s.baseline}, s.paths...) }

// The first stretch stays in one process, where programs usually run client and server over bufconn.
// A tour leaves out what the system does not support.
var stretches = []stretch{
	{"within a process", paths, path{"grpc-go over bufconn", "grpc-go, bufconn", overBufconn}, 0.5, nil},
	{
		"to a second process, over a unix socket", unixPaths(),
		path{"grpc-go, second process, unix socket", "grpc-go", overProcess(byGRPC, "unix")}, 0.28, socketfile.Supported,
	},
	{
		"to a second process, over TCP", []path{
			{"second process, TCP loopback", "nearcall", overProcess(byNearcall, "tcp")},
			{"second process, WebSocket", "nearcall, WebSocket", overProcess(byNearcall, "ws")},
		},
		path{"grpc-go, second process, TCP loopback", "grpc-go", overProcess(byGRPC, "tcp")}, 0.22, nil,
	},
}

// unixPaths returns the paths that are compared with gRPC over a unix socket: nearcall over
// one, and shared memory if the system supports it.
func unixPaths() []path {
	p := []path{{"second process, unix socket", "nearcall", overProcess(byNearcall, "unix")}}
	if runtime.GOOS == "linux" {
		p = append(p, path{"second process, shared memory", "nearcall, shared memory", overProcess(byNearcall, "shm")})
	}
	return p
}

type clientConn interface {
	grpc.ClientConnInterface
	Close() error
}

// connectionOver returns the connection to a server that stop stops.
func connectionOver(conn clientConn, stop func() error) connection {
	return connection{
		ctx: context.Background(), client: testpb.NewTestServiceClient(conn),
		close: func() error { return errors.Join(conn.Close(), stop()) },
	}
}

func inProcess(cancellable bool, opts ...nearcall.ServerOption) func(testpb.TestServiceServer) (connection, error) {
	return func(s testpb.TestServiceServer) (connection, error) {
		srv := nearcall.NewServer(opts...)
		testpb.RegisterTestServiceServer(srv, s)
		ctx, cancel := context.WithCancel(context.Background())
		c := connectionOver(srv.Client(), func() error {
			cancel()
			srv.Stop()
			return nil
		})
		if cancellable {
			c.ctx = ctx
		}
		return c, nil
	}
}

func overBufconn(s testpb.TestServiceServer) (connection, error) {
	lis := bufconn.Listen(1 << 20)
	stop := hostOn(grpc.NewServer(), lis, s)
	conn, err := grpc.NewClient("passthrough:bufconn", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
	if err != nil {
		return connection{}, errors.Join(err, stop())
	}
	return connectionOver(conn, stop), nil
}

// overSocket returns the open function of a path to a server of this process that listens.
func overSocket(who, target string) func(testpb.TestServiceServer) (connection, error) {
	return func(s testpb.TestServiceServer) (connection, error) {
		target, stop, err := host(who, target, s)
		return dialHost(who, target, stop, err)
	}
}

// overProcess returns the open function of a path to a second process, which serves its own
// copy of the service.
func overProcess(who, network string) func(testpb.TestServiceServer) (connection, error) {
	return func(testpb.TestServiceServer) (connection, error) {
		target, stop, err := startProcess(who, network)
		return dialHost(who, target, stop, err)
	}
}

// dialHost returns a connection to a host, or the host's error err. It does not upgrade a
// unix socket to shared memory, which is a separate path.
func dialHost(who, target string, stop func() error, err error) (connection, error) {
	if err != nil {
		return connection{}, err
	}
	var conn clientConn
	if who == byNearcall {
		conn, err = nearcall.NewClient(target, nearcall.WithDisableSharedMemory())
	} else {
		if address, ok := strings.CutPrefix(target, "tcp:"); ok {
			target = "passthrough:" + address
		}
		conn, err = grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	}
	if err != nil {
		return connection{}, errors.Join(err, stop())
	}
	return connectionOver(conn, stop), nil
}
