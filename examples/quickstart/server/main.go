package main

import (
	"context"
	"log"

	"google.golang.org/grpc/reflection"

	"github.com/nearcall/nearcall"
	pb "github.com/nearcall/nearcall/examples/quickstart/greetpb"
)

type greeter struct{ pb.UnimplementedGreeterServer }

func (greeter) Greet(_ context.Context, req *pb.GreetRequest) (*pb.GreetReply, error) {
	return &pb.GreetReply{Text: "Hello, " + req.GetName()}, nil
}

func main() {
	lis, err := nearcall.Listen("unix:/tmp/greeter.sock")
	if err != nil {
		log.Fatal(err)
	}
	srv := nearcall.NewServer()
	pb.RegisterGreeterServer(srv, greeter{})
	reflection.Register(srv) // for tools such as nearcall call
	log.Fatal(srv.Serve(lis))
}
