// Command plugin is a host and its plugin, with HashiCorp's go-plugin as it is and calls over
// nearcall. It runs as the host, which starts it again as the plugin:
//
//	go run .
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	pb "github.com/nearcall/nearcall/examples/quickstart/greetpb"
)

// handshake is what host and plugin agree on. go-plugin sets the variable in the plugin's environment.
var handshake = plugin.HandshakeConfig{ProtocolVersion: 1, MagicCookieKey: "NEARCALL_EXAMPLE_PLUGIN", MagicCookieValue: "greeter"}

// A greeterPlugin connects the service Greeter with go-plugin.
type greeterPlugin struct {
	plugin.NetRPCUnsupportedPlugin
	impl pb.GreeterServer // nil in the host
}

// GRPCServer implements [plugin.GRPCPlugin].
func (p *greeterPlugin) GRPCServer(_ *plugin.GRPCBroker, srv *grpc.Server) error {
	pb.RegisterGreeterServer(srv, p.impl)
	return nil
}

// GRPCClient implements [plugin.GRPCPlugin].
func (p *greeterPlugin) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return pb.NewGreeterClient(conn), nil
}

func main() {
	if os.Getenv(handshake.MagicCookieKey) != "" {
		servePlugin()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
