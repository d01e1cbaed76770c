// Package stack serves gRPC's test service to another process, and connects to it, over
// nearcall or grpc-go.
package stack

import (
	"fmt"
	"io"
	"net"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
)

// The stacks.
const (
	Nearcall = "nearcall"
	GRPC     = "grpc-go"
)

// Serve serves on a target, NETWORK:ADDRESS, until stop is called. It returns the target to
// dial.
func Serve(stack, target string, s testpb.TestServiceServer) (at string, stop func(), err error) {
	var srv interface {
		grpc.ServiceRegistrar
		Serve(net.Listener) error
		Stop()
	}
	var lis net.Listener
	switch stack {
	case Nearcall:
		l, err := nearcall.Listen(target)
		if err != nil {
			return "", nil, err
		}
		srv, lis, at = nearcall.NewServer(), l, l.Target()
	case GRPC:
		network, address, _ := strings.Cut(target, ":")
		l, err := net.Listen(network, address)
		if err != nil {
			return "", nil, err
		}
		srv, lis, at = grpc.NewServer(), l, network+":"+l.Addr().String()
	default:
		return "", nil, unknown(stack)
	}
	testpb.RegisterTestServiceServer(srv, s)
	go func() { _ = srv.Serve(lis) }()
	return at, srv.Stop, nil
}

// A Conn is a client's connection.
type Conn interface {
	grpc.ClientConnInterface
	io.Closer
}

// Dial returns a connection to the target that Serve returned. It does not upgrade a unix
// socket to shared memory.
func Dial(stack, target string) (Conn, error) {
	switch stack {
	case Nearcall:
		return nearcall.NewClient(target, nearcall.WithDisableSharedMemory())
	case GRPC:
		if address, ok := strings.CutPrefix(target, "tcp:"); ok {
			target = "passthrough:///" + address
		}
		return grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	default:
		return nil, unknown(stack)
	}
}

func unknown(stack string) error {
	return fmt.Errorf("there is no stack %q, but %s and %s", stack, Nearcall, GRPC)
}
