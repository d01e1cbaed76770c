package main

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/bench/internal/certificate"
	_ "github.com/nearcall/nearcall/quic"
)

// A way is a stack with the congestion control of its connections. All connections have TLS.
type way struct {
	Stack      string
	Congestion string
}

func (w way) String() string { return w.Stack + ", " + w.Congestion }

// A stack serves and dials. Its name stands in the table.
type stack struct {
	name     string
	controls []string // its own congestion controls; nil for those of TCP
	serve    func(w way, address string, s testpb.TestServiceServer) (at string, stop func(), err error)
	dial     func(w way, address string) (conn, error)
}

// conn is a client's connection.
type conn interface {
	grpc.ClientConnInterface
	Close() error
}

// stacks are all stacks, in the table's order.
var stacks = []stack{
	{base, []string{"reno"}, serveQUIC, dialQUIC}, // quic-go has no other
	{"grpc-go, TCP", nil, serveGRPC, dialGRPC},
	{"nearcall, TCP", nil, serveTCP, dialTCP},
}

func stackOf(w way) (stack, error) {
	for _, s := range stacks {
		if s.name == w.Stack {
			return s, nil
		}
	}
	return stack{}, fmt.Errorf("there is no stack %q", w.Stack)
}

// server is what grpc.Server and nearcall.Server have in common.
type server interface {
	grpc.ServiceRegistrar
	Serve(net.Listener) error
	Stop()
}

func serveOn(lis net.Listener, srv server, s testpb.TestServiceServer) (at string, stop func()) {
	testpb.RegisterTestServiceServer(srv, s)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = srv.Serve(lis)
	}()
	return lis.Addr().String(), func() {
		srv.Stop()
		<-ended
	}
}

// listenTCP listens with the way's congestion control.
func listenTCP(w way, address string) (net.Listener, error) {
	lc := net.ListenConfig{Control: controlled(w.Congestion)}
	return lc.Listen(context.Background(), "tcp", address)
}

// dialer dials with the way's congestion control.
func (w way) dialer(ctx context.Context, address string) (net.Conn, error) {
	d := net.Dialer{Control: controlled(w.Congestion)}
	return d.DialContext(ctx, "tcp", address)
}

func serveGRPC(w way, address string, s testpb.TestServiceServer) (string, func(), error) {
	config, err := certificate.Server()
	if err != nil {
		return "", nil, err
	}
	lis, err := listenTCP(w, address)
	if err != nil {
		return "", nil, err
	}
	at, stop := serveOn(lis, grpc.NewServer(grpc.Creds(credentials.NewTLS(config))), s)
	return at, stop, nil
}

func dialGRPC(w way, address string) (conn, error) {
	config, err := certificate.Client()
	if err != nil {
		return nil, err
	}
	return grpc.NewClient("passthrough:"+address, grpc.WithTransportCredentials(credentials.NewTLS(config)), grpc.WithContextDialer(w.dialer))
}

func serveTCP(w way, address string, s testpb.TestServiceServer) (string, func(), error) {
	config, err := certificate.Server()
	if err != nil {
		return "", nil, err
	}
	lis, err := listenTCP(w, address)
	if err != nil {
		return "", nil, err
	}
	at, stop := serveOn(lis, nearcall.NewServer(nearcall.Creds(credentials.NewTLS(config))), s)
	return at, stop, nil
}

func dialTCP(w way, address string) (conn, error) {
	config, err := certificate.Client()
	if err != nil {
		return nil, err
	}
	return nearcall.NewClient("tcp:"+address, nearcall.WithTransportCredentials(credentials.NewTLS(config)), nearcall.WithContextDialer(w.dialer))
}

func serveQUIC(_ way, address string, s testpb.TestServiceServer) (string, func(), error) {
	config, err := certificate.Server()
	if err != nil {
		return "", nil, err
	}
	lis, err := nearcall.Listen("quic:" + address)
	if err != nil {
		return "", nil, err
	}
	at, stop := serveOn(lis, nearcall.NewServer(nearcall.Creds(nearcall.NewTLS(config))), s)
	return at, stop, nil
}

func dialQUIC(_ way, address string) (conn, error) {
	config, err := certificate.Client()
	if err != nil {
		return nil, err
	}
	return nearcall.NewClient("quic:"+address, nearcall.WithTransportCredentials(nearcall.NewTLS(config)))
}
