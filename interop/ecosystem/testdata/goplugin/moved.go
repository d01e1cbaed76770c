// This file is added to a copy of go-plugin.

package plugin

import (
	"context"
	"crypto/tls"
	"net"
	"os"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/forward"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// movedServer is what a plugin that has moved passes as ServeConfig.GRPCServer.
func movedServer(opts []grpc.ServerOption) *grpc.Server {
	if os.Getenv("NEARCALL_TEST_SERVERS_MOVED") == "" {
		return grpc.NewServer(opts...)
	}
	return forward.NewServer(opts)
}

// movedClient returns what a host that has moved passes as ClientConfig.GRPCDialOptions.
func movedClient(config *tls.Config, dial func(context.Context, string) (net.Conn, error)) []grpc.DialOption {
	if os.Getenv("NEARCALL_TEST_CLIENTS_MOVED") == "" {
		return nil
	}
	opts := []nearcall.DialOption{nearcall.WithContextDialer(dial)}
	if config != nil {
		opts = append(opts, nearcall.WithTransportCredentials(credentials.NewTLS(config)))
	}
	conn, err := nearcall.NewClient("unix:plugin", opts...)
	if err != nil {
		panic(err)
	}
	return conn.DialOptions()
}
