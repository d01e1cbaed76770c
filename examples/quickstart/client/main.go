package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/nearcall/nearcall"
	pb "github.com/nearcall/nearcall/examples/quickstart/greetpb"
)

func main() {
	conn, err := nearcall.NewClient("unix:/tmp/greeter.sock")
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	client, begun := pb.NewGreeterClient(conn), time.Now()
	for n := range 10_000 {
		reply, err := client.Greet(context.Background(), &pb.GreetRequest{Name: "world"})
		if err != nil {
			log.Fatal(err)
		}
		if n == 0 {
			fmt.Println(reply.GetText())
		}
	}
	fmt.Println("10,000 calls,", time.Since(begun)/10_000, "each")
}
