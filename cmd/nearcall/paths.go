package main

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nearcall/nearcall"
)

// A path is a way from a client to a service.
type path struct {
	name string
	open func(testpb.TestServiceServer) (connection, error)
}

// A connection is an opened path. close ends everything that open started.
type connection struct {
	path   string
	ctx    context.Context // of the calls
	client testpb.TestServiceClient
	close  func() error
}

// paths are the paths within a process, without the baseline.
var paths = []path{
	{"in process", inProcess},
	{"in process, cancellable context", cancellable},
	{"in process by name", byName},
	{"in process, inline handlers", inlineHandlers},
	grpcTCP,
}

// grpcBufconn is the baseline within a process: what programs usually use to run client and
// server in one process.
var (
	grpcBufconn = path{"grpc-go over bufconn", overBufconn}
	grpcTCP     = path{"grpc-go over TCP loopback", overTCP}
)

// The paths to a second process.
const (
	secondUnix     = "second process, unix socket"
	secondShm      = "second process, shared memory"
	secondTCP      = "second process, TCP loopback"
	secondWS       = "second process, WebSocket"
	secondUnixGRPC = "grpc-go, " + secondUnix
	secondTCPGRPC  = "grpc-go, " + secondTCP
)

// A stretch is a part of the tour: some paths and their baseline.
type stretch struct {
	paths    []path
	baseline path
	share    float64      // of the tour's time
	missing  func() error // returns why the system lacks these paths, or nil
}

// names names the paths, the baseline last.
func (s stretch) names() string {
	var names []string
	for _, p := range s.paths {
		names = append(names, p.name)
	}
	return strings.Join(append(names, s.baseline.name), "; ")
}

// inOneProcess and betweenProcesses are the stretches of a tour. A tour leaves out what the
// system does not support.
var (
	inOneProcess     = stretch{paths, grpcBufconn, 0.5, nil}
	betweenProcesses = []stretch{
		{unixPaths(), path{secondUnixGRPC, overProcess(byGRPC, "unix")}, 0.28, unixSockets},
		{[]path{{secondTCP, overProcess(byNearcall, "tcp")}, {secondWS, overProcess(byNearcall, "ws")}}, path{secondTCPGRPC, overProcess(byGRPC, "tcp")}, 0.22, nil},
	}
)

// unixPaths returns the paths that are compared with gRPC over a unix socket: nearcall over
// one, and shared memory if the system supports it.
func unixPaths() []path {
	p := []path{{secondUnix, overProcess(byNearcall, "unix")}}
	if runtime.GOOS == "linux" {
		p = append(p, path{secondShm, overProcess(byNearcall, "shm")})
	}
	return p
}

// unixSockets tries to listen on a unix socket, and returns the error.
func unixSockets() error {
	dir, err := os.MkdirTemp("", "nearcall")
	if err != nil {
		return err
	}
	lis, err := nearcall.Listen("unix:" + filepath.Join(dir, "s"))
	if err == nil {
		err = lis.Close()
	}
	return errors.Join(err, os.Remove(dir))
}

func inProcess(s testpb.TestServiceServer) (connection, error) {
	srv := nearcall.NewServer()
	testpb.RegisterTestServiceServer(srv, s)
	return toServer(srv), nil
}

func cancellable(s testpb.TestServiceServer) (connection, error) {
	c, err := inProcess(s)
	return c.cancellable(), err
}

// inlineHandlers uses a context that can be cancelled, because inlining makes no difference with
// other contexts.
func inlineHandlers(s testpb.TestServiceServer) (connection, error) {
	srv := nearcall.NewServer(nearcall.HandlerPlacement(nearcall.Inline))
	testpb.RegisterTestServiceServer(srv, s)
	return toServer(srv).cancellable(), nil
}

func toServer(srv *nearcall.Server) connection {
	conn := srv.Client()
	return connection{
		ctx:    context.Background(),
		client: testpb.NewTestServiceClient(conn),
		close: func() error {
			err := conn.Close()
			srv.Stop()
			return err
		},
	}
}

func (c connection) cancellable() connection {
	ctx, cancel := context.WithCancel(c.ctx)
	closeConn := c.close
	c.ctx = ctx
	c.close = func() error {
		cancel()
		return closeConn()
	}
	return c
}

func byName(s testpb.TestServiceServer) (connection, error) {
	srv := nearcall.NewServer()
	testpb.RegisterTestServiceServer(srv, s)
	lis, err := nearcall.Listen("inproc:tour")
	if err != nil {
		return connection{}, err
	}
	conn, err := nearcall.NewClient(lis.Target())
	if err != nil {
		return connection{}, errors.Join(err, lis.Close())
	}
	return served(srv, lis, conn), nil
}

func overBufconn(s testpb.TestServiceServer) (connection, error) {
	lis := bufconn.Listen(1 << 20)
	return overGRPC(s, lis, "passthrough:bufconn", grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return lis.DialContext(ctx)
	}))
}

func overTCP(s testpb.TestServiceServer) (connection, error) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return connection{}, err
	}
	return overGRPC(s, lis, "passthrough:"+lis.Addr().String(), grpc.WithNoProxy())
}

func overGRPC(s testpb.TestServiceServer, lis net.Listener, target string, opt grpc.DialOption) (connection, error) {
	srv := grpc.NewServer()
	testpb.RegisterTestServiceServer(srv, s)
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()), opt)
	if err != nil {
		return connection{}, errors.Join(err, lis.Close())
	}
	return served(srv, lis, conn), nil
}

// served returns a connection to a server behind a listener. The server is nearcall's or
// grpc-go's, which have the same methods.
func served(srv interface {
	Serve(net.Listener) error
	Stop()
}, lis net.Listener, conn interface {
	grpc.ClientConnInterface
	Close() error
}) connection {
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(lis) }()
	return connection{
		ctx:    context.Background(),
		client: testpb.NewTestServiceClient(conn),
		close: func() error {
			err := conn.Close()
			srv.Stop()
			if served := <-ended; !errors.Is(served, grpc.ErrServerStopped) { // Stop may come before Serve
				err = errors.Join(err, served)
			}
			return err
		},
	}
}
