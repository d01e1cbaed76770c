// Command targets is a server, and a client that calls a fixed list of servers, a name or a unix socket.
// docs/targets.md explains the targets. To try it:
//
//	go build -o /tmp/targets ./examples/targets
//	/tmp/targets serve tcp:127.0.0.1:50061 & /tmp/targets serve tcp:127.0.0.1:50062 & /tmp/targets serve unix:/tmp/greeter.sock &
//	/tmp/targets call 127.0.0.1:50061,127.0.0.1:50062
//	/tmp/targets call 127.0.0.1:50061,unix:/tmp/greeter.sock
//	/tmp/targets call dns:///localhost:50061
//	/tmp/targets call unix:/tmp/greeter.sock
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/nearcall/nearcall"
	pb "github.com/nearcall/nearcall/examples/quickstart/greetpb"
)

// A greeter says who it is.
type greeter struct {
	pb.UnimplementedGreeterServer
	name string
}

func (g greeter) Greet(_ context.Context, req *pb.GreetRequest) (*pb.GreetReply, error) {
	return &pb.GreetReply{Text: "Hello, " + req.GetName() + ", from " + g.name}, nil
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 || os.Args[1] != "serve" && os.Args[1] != "call" {
		log.Fatal("usage: targets serve LISTEN, or targets call TARGET")
	}
	what := os.Args[2]
	if os.Args[1] == "serve" {
		lis, err := nearcall.Listen(what)
		if err != nil {
			log.Fatal(err)
		}
		log.Fatal(newServer(lis.Target()).Serve(lis))
	}
	conn, err := dial(what)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	for range 10 {
		text, err := call(conn)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(text)
		time.Sleep(100 * time.Millisecond) // the other servers are used once they are connected
	}
}

func newServer(name string) *nearcall.Server {
	srv := nearcall.NewServer()
	pb.RegisterGreeterServer(srv, greeter{name: name})
	return srv
}

// dial returns a connection to a target, or to a list of addresses with commas between them.
func dial(target string) (*nearcall.ClientConn, error) {
	opts := []nearcall.DialOption{
		nearcall.WithTransportCredentials(insecure.NewCredentials()),
		nearcall.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin": {}}]}`),
	}
	if strings.Contains(target, ",") {
		opts = append(opts, nearcall.WithResolvers(listOf(strings.Split(target, ","))))
		target = "static:///greeter"
	}
	return nearcall.NewClient(target, opts...)
}

// call makes a call and returns the text of its reply.
func call(conn *nearcall.ClientConn) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	reply, err := pb.NewGreeterClient(conn).Greet(ctx, &pb.GreetRequest{Name: "world"}, grpc.WaitForReady(true))
	return reply.GetText(), err
}

// listOf returns a resolver for a fixed list of addresses: HOST:PORT, or targets of nearcall's.
func listOf(addrs []string) resolver.Builder {
	r := manual.NewBuilderWithScheme("static")
	var s resolver.State
	for _, a := range addrs {
		s.Endpoints = append(s.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: a}}})
	}
	r.InitialState(s)
	return r
}
