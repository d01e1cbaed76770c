package nearcall_test

import (
	"context"
	"fmt"
	"log"

	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/examples/quickstart/greetpb"
)

// A host greets its caller by the name that the caller answers to.
type host struct {
	greetpb.UnimplementedGreeterServer
}

func (host) Greet(ctx context.Context, _ *greetpb.GreetRequest) (*greetpb.GreetReply, error) {
	caller := greetpb.NewGreeterClient(nearcall.PeerConn(ctx))
	name, err := caller.Greet(ctx, &greetpb.GreetRequest{Name: "stranger"})
	if err != nil {
		return nil, err
	}
	return &greetpb.GreetReply{Text: "welcome, " + name.GetText()}, nil
}

// A guest answers with its name.
type guest struct {
	greetpb.UnimplementedGreeterServer
}

func (guest) Greet(context.Context, *greetpb.GreetRequest) (*greetpb.GreetReply, error) {
	return &greetpb.GreetReply{Text: "Ada"}, nil
}

// A handler calls the client that has called it, over the same connection.
func ExamplePeerConn() {
	srv := nearcall.NewServer()
	defer srv.Stop()
	greetpb.RegisterGreeterServer(srv, host{})

	own := nearcall.NewServer() // serves the client's end
	defer own.Stop()
	greetpb.RegisterGreeterServer(own, guest{})
	conn := srv.Client(nearcall.WithServer(own))
	defer conn.Close()

	reply, err := greetpb.NewGreeterClient(conn).Greet(context.Background(), &greetpb.GreetRequest{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(reply.GetText())
	// Output: welcome, Ada
}

// A registry checks the health of those who call it.
type registry struct {
	greetpb.UnimplementedGreeterServer
}

func (registry) Greet(ctx context.Context, req *greetpb.GreetRequest) (*greetpb.GreetReply, error) {
	reply, err := healthpb.NewHealthClient(nearcall.PeerConn(ctx)).Check(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		return nil, err
	}
	return &greetpb.GreetReply{Text: fmt.Sprintf("%s is %s", req.GetName(), reply.GetStatus())}, nil
}

// A client has services without a listener of its own. [WithPersistentConnection] keeps it
// connected, so that a server can call it at any time. The examples directory has a program,
// agent, whose server gives work to such clients.
func ExampleWithServer() {
	lis, err := nearcall.Listen("tcp:127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	srv := nearcall.NewServer()
	defer srv.Stop()
	greetpb.RegisterGreeterServer(srv, registry{})
	go srv.Serve(lis)

	own := nearcall.NewServer()
	defer own.Stop()
	healthpb.RegisterHealthServer(own, health.NewServer())
	conn, err := nearcall.NewClient(lis.Target(), nearcall.WithServer(own), nearcall.WithPersistentConnection())
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	reply, err := greetpb.NewGreeterClient(conn).Greet(context.Background(), &greetpb.GreetRequest{Name: "worker 7"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(reply.GetText())
	// Output: worker 7 is SERVING
}
