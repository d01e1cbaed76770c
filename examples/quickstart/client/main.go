package main

import (
	"context"
	"fmt"
	"log"

	"github.com/nearcall/nearcall"
	pb "github.com/nearcall/nearcall/examples/quickstart/greetpb"
)

func main() {
	conn, err := nearcall.NewClient("unix:/tmp/greeter.sock")
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	reply, err := pb.NewGreeterClient(conn).Greet(context.Background(), &pb.GreetRequest{Name: "world"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(reply.GetText())
}
