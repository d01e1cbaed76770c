package nearcall_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/examples/orders/orderspb"
)

// Two processes of one user share memory, set up over a unix socket. Linux only. With
// unix:PATH the connection stays a socket if one side declines; with shm:PATH calls fail.
func Example_sharedMemory() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	srv := nearcall.NewServer()
	defer srv.Stop()
	healthpb.RegisterHealthServer(srv, health.NewServer())
	lis, err := nearcall.Listen("shm:" + filepath.Join(dir, "health.sock"))
	if err != nil {
		log.Fatal(err)
	}
	go srv.Serve(lis)

	conn, err := nearcall.NewClient(lis.Target())
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	var p peer.Peer
	reply, err := healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{}, grpc.Peer(&p))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(reply.Status, "over", p.Addr.Network())
	// Output: SERVING over shm
}

// requireUser returns an interceptor that refuses callers who are not the user uid.
func requireUser(uid int) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		p, ok := peer.FromContext(ctx)
		if !ok {
			return nil, status.Error(codes.Unauthenticated, "the peer is unknown")
		}
		who, ok := p.AuthInfo.(nearcall.UnixAuthInfo)
		if !ok {
			return nil, status.Error(codes.Unauthenticated, "the peer is not a local process")
		}
		if int(who.UID) != uid {
			return nil, status.Errorf(codes.PermissionDenied, "user %d is not allowed", who.UID)
		}
		return handler(ctx, req)
	}
}

// A shopkeeper accepts every order.
type shopkeeper struct {
	orderspb.UnimplementedOrdersServer
}

func (shopkeeper) Place(_ context.Context, req *orderspb.PlaceRequest) (*orderspb.Order, error) {
	return &orderspb.Order{Id: 1, Item: req.GetItem()}, nil
}

// A server at a unix socket admits one user only. The client reads the server's process
// ID in the same way.
func ExampleUnixAuthInfo() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	srv := nearcall.NewServer(nearcall.ChainUnaryInterceptor(requireUser(os.Getuid())))
	defer srv.Stop()
	orderspb.RegisterOrdersServer(srv, shopkeeper{})
	lis, err := nearcall.Listen("unix:" + filepath.Join(dir, "orders.sock"))
	if err != nil {
		log.Fatal(err)
	}
	go srv.Serve(lis)

	conn, err := nearcall.NewClient(lis.Target())
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	var p peer.Peer
	order, err := orderspb.NewOrdersClient(conn).Place(context.Background(), &orderspb.PlaceRequest{Item: "tea"}, grpc.Peer(&p))
	if err != nil {
		log.Fatal(err)
	}
	server, ok := p.AuthInfo.(nearcall.UnixAuthInfo)
	fmt.Println(order.GetItem(), "from this process:", ok && server.PID == os.Getpid())
	// Output: tea from this process: true
}
