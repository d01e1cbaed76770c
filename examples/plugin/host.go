package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"github.com/nearcall/nearcall"
	pb "github.com/nearcall/nearcall/examples/quickstart/greetpb"
)

// run starts the plugin for an ordinary host and for one that has moved to nearcall, and prints
// what they get.
func run(ctx context.Context, w io.Writer) error {
	config, err := newConfig()
	if err != nil {
		return err
	}
	client := plugin.NewClient(config)
	defer client.Kill()
	if err := greet(ctx, w, client, "ordinary host"); err != nil {
		return err
	}

	// The host learns the plugin's address from Start, and conn dials it at its first call.
	var addr net.Addr
	conn, err := nearcall.NewClient("unix:plugin",
		nearcall.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, addr.Network(), addr.String())
		}))
	if err != nil {
		return err
	}
	defer conn.Close()
	if config, err = newConfig(); err != nil {
		return err
	}
	config.GRPCDialOptions = conn.DialOptions()
	near := plugin.NewClient(config)
	defer near.Kill()
	if addr, err = near.Start(); err != nil {
		return err
	}
	return greet(ctx, w, near, "host on nearcall")
}

// newConfig returns the configuration of an ordinary host, whose plugin is this program.
func newConfig() (*plugin.ClientConfig, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return &plugin.ClientConfig{
		HandshakeConfig:  handshake,
		Plugins:          plugin.PluginSet{"greeter": &greeterPlugin{}},
		Cmd:              exec.Command(program),
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		Logger:           hclog.New(&hclog.LoggerOptions{Name: "host", Level: hclog.Warn}),
	}, nil
}

// greet calls the plugin of client, as any host of go-plugin does, and prints its answer and the
// path of the call.
func greet(ctx context.Context, w io.Writer, client *plugin.Client, host string) error {
	protocol, err := client.Client()
	if err != nil {
		return err
	}
	raw, err := protocol.Dispense("greeter")
	if err != nil {
		return err
	}
	var p peer.Peer
	reply, err := raw.(pb.GreeterClient).Greet(ctx, &pb.GreetRequest{Name: host}, grpc.Peer(&p))
	if err != nil {
		return err
	}
	if err := protocol.Ping(); err != nil {
		return err
	}
	fmt.Fprintf(w, "%s, over %s\n", reply.GetText(), p.Addr.Network())
	return nil
}
