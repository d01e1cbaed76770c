package nearcall_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
)

// Parts of a program that do not share a variable connect by name. The client can be
// created first: with WaitForReady its calls wait for the server.
func ExampleListen() {
	conn, err := nearcall.NewClient("inproc:health")
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	srv := nearcall.NewServer()
	defer srv.Stop()
	healthpb.RegisterHealthServer(srv, health.NewServer())
	lis, err := nearcall.Listen("inproc:health")
	if err != nil {
		log.Fatal(err)
	}
	go srv.Serve(lis)

	reply, err := healthpb.NewHealthClient(conn).Check(context.Background(),
		&healthpb.HealthCheckRequest{}, grpc.WaitForReady(true))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(reply.Status)
	// Output: SERVING
}

// Streams work as they do over a network: the handler runs concurrently with the caller,
// flow control limits how far it gets ahead, and the caller's context cancels it.
func ExampleClientConn_NewStream() {
	status := health.NewServer()
	srv := nearcall.NewServer()
	defer srv.Stop()
	healthpb.RegisterHealthServer(srv, status)
	conn := srv.Client()
	defer conn.Close()

	ctx, cancel := context.WithCancel(context.Background())
	stream, err := healthpb.NewHealthClient(conn).Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		reply, err := stream.Recv()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(reply.Status)
		status.Shutdown() // makes the handler send NOT_SERVING
	}
	cancel()
	for err == nil {
		_, err = stream.Recv()
	}
	fmt.Println(err == io.EOF, err)
	// Output:
	// SERVING
	// NOT_SERVING
	// false rpc error: code = Canceled desc = context canceled
}

// Interceptors, metadata and statuses have grpc-go's types.
func ExampleChainUnaryInterceptor() {
	authorize := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		if len(md.Get("authorization")) == 0 {
			return nil, status.Errorf(codes.Unauthenticated, "%s needs a token", info.FullMethod)
		}
		return handler(ctx, req)
	}
	srv := nearcall.NewServer(nearcall.ChainUnaryInterceptor(authorize))
	defer srv.Stop()
	healthpb.RegisterHealthServer(srv, health.NewServer())
	conn := srv.Client()
	defer conn.Close()
	client := healthpb.NewHealthClient(conn)

	ctx := context.Background()
	_, err := client.Check(ctx, &healthpb.HealthCheckRequest{})
	fmt.Println(err)
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "token")
	reply, err := client.Check(ctx, &healthpb.HealthCheckRequest{})
	fmt.Println(reply.GetStatus(), err)
	// Output:
	// rpc error: code = Unauthenticated desc = /grpc.health.v1.Health/Check needs a token
	// SERVING <nil>
}

// InlineHandlers runs handlers on their callers' goroutines even if the caller has a
// deadline. That is safe for handlers that are quick or watch their contexts.
func ExampleInlineHandlers() {
	srv := nearcall.NewServer(nearcall.InlineHandlers())
	defer srv.Stop()
	healthpb.RegisterHealthServer(srv, health.NewServer())
	conn := srv.Client()
	defer conn.Close()

	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	reply, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	fmt.Println(reply.GetStatus(), err)
	// Output: SERVING <nil>
}

// Targets that are not nearcall's own go to grpc-go unchanged, with the options that
// grpc-go has, too.
func ExampleNewClient() {
	conn, err := nearcall.NewClient("localhost:50051",
		nearcall.WithTransportCredentials(insecure.NewCredentials()),
		nearcall.WithUserAgent("example"))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	fmt.Println(conn.Target(), conn.GetState())
	// Output: localhost:50051 IDLE
}
