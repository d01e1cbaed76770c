package fleet

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/naming/endpoints"
	"google.golang.org/grpc"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"

	"github.com/nearcall/nearcall"
)

// A program with the variable roleKey is a server: its kind, "nearcall" or "grpc-go", its address, and
// the addresses of etcd.
const roleKey = "NEARCALL_FLEET_SERVER"

// service is the name under which servers are registered.
const service = "services/echo"

// serve serves until SIGTERM.
func serve() {
	role := strings.Fields(os.Getenv(roleKey))
	kind, address, etcd := role[0], role[1], role[2:]
	log.SetPrefix(address + " ")
	lis, err := net.Listen("tcp", address)
	if err != nil {
		log.Fatal(err)
	}
	alive := keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}
	var srv interface {
		grpc.ServiceRegistrar
		Serve(net.Listener) error
		GracefulStop()
	}
	if kind == "nearcall" {
		srv = nearcall.NewServer(nearcall.KeepaliveEnforcementPolicy(alive))
	} else {
		srv = grpc.NewServer(grpc.KeepaliveEnforcementPolicy(alive))
	}
	pb.RegisterTestServiceServer(srv, echo{name: address})
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends with the test
		term <- syscall.SIGTERM
	}()
	ctx, cancel := context.WithCancel(context.Background())
	registered := make(chan struct{})
	go func() {
		defer close(registered)
		register(ctx, address, etcd)
	}()
	go func() {
		<-term
		cancel()
		<-registered
		srv.GracefulStop()
		os.Exit(0)
	}()
	fmt.Println("serving")
	log.Print(srv.Serve(lis))
	select {}
}

// register keeps address registered until ctx ends, and then removes it.
func register(ctx context.Context, address string, etcd []string) {
	client, err := clientv3.New(clientv3.Config{Endpoints: etcd, DialTimeout: 5 * time.Second, Logger: quiet})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	names, err := endpoints.NewManager(client, service)
	if err != nil {
		log.Fatal(err)
	}
	for ctx.Err() == nil {
		if err := once(ctx, client, names, address); err != nil {
			log.Print("not registered: ", err)
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
	last, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = names.DeleteEndpoint(last, service+"/"+address)
}

// once registers address until its lease ends.
func once(ctx context.Context, client *clientv3.Client, names endpoints.Manager, address string) error {
	try, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	const seconds = 2
	lease, err := client.Grant(try, seconds)
	if err != nil {
		return err
	}
	if err := names.AddEndpoint(try, service+"/"+address, endpoints.Endpoint{Addr: address}, clientv3.WithLease(lease.ID)); err != nil {
		return err
	}
	alive, err := client.KeepAlive(ctx, lease.ID)
	if err != nil {
		return err
	}
	for range alive {
	}
	return nil
}

// echo is the servers' service. Replies name the server.
type echo struct {
	pb.UnimplementedTestServiceServer
	name string
}

func (e echo) UnaryCall(_ context.Context, req *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	return &pb.SimpleResponse{ServerId: e.name, Payload: req.GetPayload()}, nil
}

func (e echo) FullDuplexCall(s grpc.BidiStreamingServer[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse]) error {
	for {
		req, err := s.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.Send(&pb.StreamingOutputCallResponse{Payload: req.GetPayload()}); err != nil {
			return err
		}
	}
}
