package main

import (
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func serveGRPC(network, address string, s Services) (string, func(), error) {
	creds, err := serverTLS(network)
	if err != nil {
		return "", nil, err
	}
	return serveOn(socketNetwork(network), address, func(lis net.Listener) (run, stop func()) {
		srv := grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage), grpc.Creds(creds))
		register(srv, s)
		return func() { _ = srv.Serve(lis) }, srv.Stop
	})
}

func dialGRPC(network, address string, _ Row) (Conn, error) {
	target := "passthrough:" + address
	if network == "unix" {
		target = "unix:" + address
	}
	creds, err := clientTLS(network)
	if err != nil {
		return Conn{}, err
	}
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(creds), grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return Conn{}, err
	}
	return stubs(conn, func() { _ = conn.Close() }), nil
}
