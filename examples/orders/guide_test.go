package orders_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/testdata"

	"github.com/nearcall/nearcall"
	pb "github.com/nearcall/nearcall/examples/orders/orderspb"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

// This file is the code of docs/guide.md.

type teaShop struct {
	pb.UnimplementedOrdersServer
	stock int32
}

func (s *teaShop) Place(ctx context.Context, req *pb.PlaceRequest) (*pb.Order, error) {
	if req.GetQuantity() > s.stock {
		st := status.New(codes.ResourceExhausted, "too little in stock")
		st, err := st.WithDetails(&pb.Shortage{Item: req.GetItem(), Wanted: req.GetQuantity(), Left: s.stock})
		if err != nil {
			return nil, err
		}
		return nil, st.Err()
	}
	return &pb.Order{Id: 1, Item: req.GetItem(), Quantity: req.GetQuantity()}, nil
}

func (s *teaShop) Await(ctx context.Context, req *pb.AwaitRequest) (*pb.Order, error) {
	select {
	case <-time.After(time.Minute): // the order is shipped
		return &pb.Order{Id: req.GetId(), Shipped: true}, nil
	case <-ctx.Done(): // the caller has left, or its deadline has passed
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

func (s *teaShop) List(req *pb.ListRequest, out grpc.ServerStreamingServer[pb.Order]) error {
	for id := int64(1); id <= 3; id++ {
		if err := out.Send(&pb.Order{Id: id, Customer: req.GetCustomer()}); err != nil {
			return err
		}
	}
	return nil
}

func (s *teaShop) Haggle(stream grpc.BidiStreamingServer[pb.Offer, pb.Answer]) error {
	for {
		offer, err := stream.Recv()
		if err == io.EOF { // the client has called CloseSend
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.Send(&pb.Answer{Accepted: offer.GetCents() >= 500, AskCents: 500}); err != nil {
			return err
		}
	}
}

// guided serves a shop at a target until the test ends, and returns the target to dial.
func guided(t *testing.T, target string, opts ...nearcall.ServerOption) string {
	t.Helper()
	srv := nearcall.NewServer(opts...)
	pb.RegisterOrdersServer(srv, &teaShop{stock: 5})
	lis, err := nearcall.Listen(target)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = srv.Serve(lis) }()
	t.Cleanup(srv.Stop)
	return lis.Target()
}

func TestGuideServerAndClient(t *testing.T) {
	needs.UnixSockets(t)
	socket := "unix:" + filepath.Join(t.TempDir(), "orders.sock")
	serve := func() {
		srv := nearcall.NewServer()
		pb.RegisterOrdersServer(srv, &teaShop{stock: 5})
		lis, err := nearcall.Listen(socket)
		if err != nil {
			log.Fatal(err)
		}
		t.Cleanup(srv.Stop)
		go func() { _ = srv.Serve(lis) }()
	}
	serve()
	conn, err := nearcall.NewClient(socket)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	client := pb.NewOrdersClient(conn)

	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	order, err := client.Place(ctx, &pb.PlaceRequest{Item: "tea", Quantity: 2})
	if err != nil || order.GetQuantity() != 2 {
		t.Fatal(order, err)
	}

	_, err = client.Place(ctx, &pb.PlaceRequest{Item: "tea", Quantity: 9})
	left := int32(-1)
	for _, detail := range status.Convert(err).Details() {
		if shortage, ok := detail.(*pb.Shortage); ok {
			left = shortage.GetLeft()
		}
	}
	if left != 5 {
		t.Errorf("%d are left: %v", left, err)
	}

	var listed int
	list, err := client.List(ctx, &pb.ListRequest{Customer: "ada"})
	if err != nil {
		t.Fatal(err)
	}
	for {
		order, err := list.Recv()
		if err == io.EOF { // the handler has returned nil
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		listed += int(order.GetId())
	}
	if listed != 6 {
		t.Errorf("the ids add up to %d", listed)
	}

	haggle, err := client.Haggle(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for cents := int32(300); ; cents += 100 {
		if err := haggle.Send(&pb.Offer{Item: "tea", Cents: cents}); err != nil {
			t.Fatal(err)
		}
		answer, err := haggle.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if answer.GetAccepted() {
			break
		}
	}
	if err := haggle.CloseSend(); err != nil {
		t.Fatal(err)
	}
}

func authenticate(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	if token := md.Get("authorization"); len(token) != 1 || token[0] != "Bearer secret" {
		return nil, status.Error(codes.Unauthenticated, "no valid token")
	}
	return next(ctx, req)
}

func TestGuideInterceptors(t *testing.T) {
	target := guided(t, "tcp:127.0.0.1:0", nearcall.ChainUnaryInterceptor(authenticate))
	conn, err := nearcall.NewClient(target, nearcall.WithChainUnaryInterceptor(
		func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer secret")
			return invoke(ctx, method, req, reply, cc, opts...)
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := pb.NewOrdersClient(conn).Place(t.Context(), &pb.PlaceRequest{Item: "tea"}); err != nil {
		t.Error(err)
	}
}

func TestGuideTLS(t *testing.T) {
	certFile, keyFile, caFile := testdata.Path("x509/server1_cert.pem"), testdata.Path("x509/server1_key.pem"), testdata.Path("x509/server_ca_cert.pem")
	cert, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	target := guided(t, "tcp:127.0.0.1:0", nearcall.Creds(nearcall.NewTLS(&tls.Config{Certificates: []tls.Certificate{cert}})))

	roots := x509.NewCertPool()
	pem, err := os.ReadFile(caFile)
	if err != nil || !roots.AppendCertsFromPEM(pem) {
		t.Fatal("no certificate: ", err)
	}
	creds := nearcall.NewTLS(&tls.Config{RootCAs: roots, ServerName: "x.test.example.com"})
	conn, err := nearcall.NewClient(target, nearcall.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := pb.NewOrdersClient(conn).Place(t.Context(), &pb.PlaceRequest{Item: "tea"}); err != nil {
		t.Error(err)
	}
}

func TestGuideBalancing(t *testing.T) {
	address := strings.TrimPrefix(guided(t, "tcp:127.0.0.1:0"), "tcp:")
	conn, err := nearcall.NewClient("dns:///"+address,
		nearcall.WithTransportCredentials(insecure.NewCredentials()),
		nearcall.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin": {}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := pb.NewOrdersClient(conn).Place(t.Context(), &pb.PlaceRequest{Item: "tea"}); err != nil {
		t.Error(err)
	}
}

func TestAwaitEndsAtTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := nearcall.NewServer()
		defer srv.Stop()
		pb.RegisterOrdersServer(srv, new(teaShop))
		conn := srv.Client()
		defer conn.Close()

		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := pb.NewOrdersClient(conn).Await(ctx, &pb.AwaitRequest{Id: 1})
		if status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("got %v", err)
		}
	})
}

func TestGuideShutdown(t *testing.T) {
	srv := nearcall.NewServer()
	pb.RegisterOrdersServer(srv, &teaShop{stock: 5})
	lis, err := nearcall.Listen("tcp:127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	const patience = time.Minute
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := srv.Shutdown(ctx); err != nil {
		log.Printf("calls were cut off: %v", err)
	}
	if ctx.Err() != nil {
		t.Error("Shutdown has waited until its context ended")
	}
	if err := <-served; err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, grpc.ErrServerStopped) {
		t.Error(err)
	}
}

// TestPagesShowThisCode checks that each listing of a page is in its file here, apart from indentation.
func TestPagesShowThisCode(t *testing.T) {
	flat := func(file string) string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		for line := range strings.Lines(string(text)) {
			fmt.Fprintln(&b, strings.TrimSpace(line))
		}
		return b.String()
	}
	for page, least := range map[string]int{"guide": 8, "operations": 3} {
		source, listings := flat(page+"_test.go"), strings.Split(flat("../../docs/"+page+".md"), "```go\n")[1:]
		if len(listings) < least {
			t.Errorf("the %s has %d listings", page, len(listings))
		}
		for _, l := range listings {
			if code, _, _ := strings.Cut(l, "```"); !strings.Contains(source, code) {
				t.Errorf("%s_test.go has no\n%s", page, code)
			}
		}
	}
}
