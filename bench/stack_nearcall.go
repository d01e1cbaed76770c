package main

import (
	"context"
	"fmt"
	"math"
	"net"
	"strings"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	grpcpeer "google.golang.org/grpc/peer"

	"github.com/nearcall/nearcall"
	nearconnect "github.com/nearcall/nearcall/connect"
)

// nearcallTarget returns the target to listen on and to connect to, and the network that
// its connections must report.
func nearcallTarget(network, address string) (target, becomes string) {
	switch network {
	case upgradedNetwork:
		return "unix:" + address, shmNetwork
	case webNetwork:
		return "ws:" + address, "tcp"
	case tlsNetwork:
		return "tcp:" + address, "tcp"
	case quicNetwork:
		return "quic:" + address, "udp"
	}
	return network + ":" + address, network
}

func serveNearcall(network, address string, s Services) (string, func(), error) {
	return serveNearcallWith(network, address, func(srv *nearcall.Server) { register(srv, s) })
}

// serveConnectNearcall serves with the handlers that Connect's generator would make.
func serveConnectNearcall(network, address string, s Services) (string, func(), error) {
	return serveNearcallWith(network, address, func(srv *nearcall.Server) { nearconnect.Register(srv, connectServer(s)) })
}

func serveNearcallWith(network, address string, register func(*nearcall.Server)) (string, func(), error) {
	target, _ := nearcallTarget(network, address)
	creds, err := serverTLS(network)
	if err != nil {
		return "", nil, err
	}
	lis, err := nearcall.Listen(target)
	if err != nil {
		return "", nil, err
	}
	_, at, _ := strings.Cut(lis.Target(), ":")
	return at, serveFrom(lis, func(lis net.Listener) (run, stop func()) {
		srv := nearcall.NewServer(nearcall.MaxRecvMsgSize(maxMessage), nearcall.Creds(creds), nearcall.MaxConcurrentStreams(math.MaxUint32)) // as grpc-go
		register(srv)
		return func() { _ = srv.Serve(lis) }, srv.Stop
	}), nil
}

func dialNearcall(network, address string, _ Row) (Conn, error) {
	client, err := newNearcall(network, address)
	if err != nil {
		return Conn{}, err
	}
	return stubs(client, func() { _ = client.Close() }), nil
}

func dialConnectNearcall(network, address string, _ Row) (Conn, error) {
	client, err := newNearcall(network, address)
	if err != nil {
		return Conn{}, err
	}
	return connectConn(nearconnect.NewTransport(client), func() { _ = client.Close() }), nil
}

// newNearcall connects and makes a call. It fails if the connection uses another network
// than the one that is measured.
func newNearcall(network, address string) (*nearcall.ClientConn, error) {
	target, becomes := nearcallTarget(network, address)
	creds, err := clientTLS(network)
	if err != nil {
		return nil, err
	}
	opts := []nearcall.DialOption{nearcall.WithTransportCredentials(creds), nearcall.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage))}
	if network != upgradedNetwork {
		opts = append(opts, nearcall.WithDisableSharedMemory())
	}
	client, err := nearcall.NewClient(target, opts...)
	if err != nil {
		return nil, err
	}
	var p grpcpeer.Peer
	_, err = testpb.NewTestServiceClient(client).EmptyCall(context.Background(), new(testpb.Empty), grpc.Peer(&p))
	if err == nil && p.Addr.Network() != becomes {
		err = fmt.Errorf("the connection's network is %q, not %q", p.Addr.Network(), becomes)
	}
	if err != nil {
		_ = client.Close()
		return nil, err
	}
	return client, nil
}
