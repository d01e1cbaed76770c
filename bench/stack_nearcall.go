package main

import (
	"net"
	"strings"

	"google.golang.org/grpc"

	"github.com/nearcall/nearcall"
)

func serveNearcall(network, address string, s Services) (string, func(), error) {
	lis, err := nearcall.Listen(network + ":" + address)
	if err != nil {
		return "", nil, err
	}
	_, at, _ := strings.Cut(lis.Target(), ":")
	return at, serveFrom(lis, func(lis net.Listener) (run, stop func()) {
		srv := nearcall.NewServer(nearcall.MaxRecvMsgSize(maxMessage))
		register(srv, s)
		return func() { _ = srv.Serve(lis) }, srv.Stop
	}), nil
}

func dialNearcall(network, address string, _ Row) (Conn, error) {
	conn, err := nearcall.NewClient(network+":"+address, nearcall.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return Conn{}, err
	}
	return stubs(conn, func() { _ = conn.Close() }), nil
}
