package main

import (
	"context"

	"github.com/hashicorp/go-plugin"

	pb "github.com/nearcall/nearcall/examples/quickstart/greetpb"
	"github.com/nearcall/nearcall/forward"
)

type greeter struct {
	pb.UnimplementedGreeterServer
}

// Greet implements the service Greeter.
func (greeter) Greet(_ context.Context, req *pb.GreetRequest) (*pb.GreetReply, error) {
	return &pb.GreetReply{Text: "Hello, " + req.GetName()}, nil
}

// servePlugin serves until the host stops the plugin.
func servePlugin() {
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: handshake,
		Plugins:         plugin.PluginSet{"greeter": &greeterPlugin{impl: greeter{}}},
		GRPCServer:      forward.NewServer, // was plugin.DefaultGRPCServer
	})
}
