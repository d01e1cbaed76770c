package nearcall_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log"
	"os"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/testdata"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/examples/orders/orderspb"
)

// A namedShop takes orders for the customer that the client's certificate names.
type namedShop struct {
	orderspb.UnimplementedOrdersServer
}

func (namedShop) Place(ctx context.Context, req *orderspb.PlaceRequest) (*orderspb.Order, error) {
	p, _ := peer.FromContext(ctx)
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return nil, status.Error(codes.Unauthenticated, "a certificate is required")
	}
	customer := info.State.VerifiedChains[0][0].Subject.CommonName
	return &orderspb.Order{Customer: customer, Item: req.GetItem()}, nil
}

// Mutual TLS over TCP: each side verifies the other's certificate, as with grpc-go. The
// handler reads the client's certificate from the peer.
func ExampleCreds_mutualTLS() {
	// The server's certificate, and the CA of its clients.
	cert, err := tls.LoadX509KeyPair(testdata.Path("x509/server1_cert.pem"), testdata.Path("x509/server1_key.pem"))
	if err != nil {
		log.Fatal(err)
	}
	srv := nearcall.NewServer(nearcall.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{cert},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    readPool(testdata.Path("x509/client_ca_cert.pem")),
	})))
	defer srv.Stop()
	orderspb.RegisterOrdersServer(srv, namedShop{})
	lis, err := nearcall.Listen("tcp:127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go srv.Serve(lis)

	// The client's certificate, and the CA of the server.
	cert, err = tls.LoadX509KeyPair(testdata.Path("x509/client1_cert.pem"), testdata.Path("x509/client1_key.pem"))
	if err != nil {
		log.Fatal(err)
	}
	conn, err := nearcall.NewClient(lis.Target(), nearcall.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{cert},
		RootCAs:      readPool(testdata.Path("x509/server_ca_cert.pem")),
		ServerName:   "x.test.example.com",
	})))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	order, err := orderspb.NewOrdersClient(conn).Place(context.Background(), &orderspb.PlaceRequest{Item: "tea"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(order.GetItem(), "for", order.GetCustomer())
	// Output: tea for test-client1
}

func readPool(file string) *x509.CertPool {
	pem, err := os.ReadFile(file)
	if err != nil {
		log.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		log.Fatalf("%s has no certificate", file)
	}
	return pool
}
