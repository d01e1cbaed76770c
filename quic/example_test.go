package quic_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"time"

	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
	_ "github.com/nearcall/nearcall/quic"
)

// An ordinary generated service, served and called over QUIC.
func Example() {
	certificate, trusted := selfSigned()
	lis, err := nearcall.Listen("quic:127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	srv := nearcall.NewServer(nearcall.Creds(nearcall.NewTLS(&tls.Config{Certificates: []tls.Certificate{certificate}})))
	testpb.RegisterTestServiceServer(srv, service{})
	go srv.Serve(lis)
	defer srv.Stop()

	conn, err := nearcall.NewClient(lis.Target(),
		nearcall.WithTransportCredentials(nearcall.NewTLS(&tls.Config{RootCAs: trusted, ServerName: "example.test"})))
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	reply, err := testpb.NewTestServiceClient(conn).UnaryCall(context.Background(), &testpb.SimpleRequest{})
	fmt.Println(reply.GetUsername(), err)
	// Output: hello <nil>
}

type service struct {
	testpb.UnimplementedTestServiceServer
}

func (service) UnaryCall(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return &testpb.SimpleResponse{Username: "hello"}, nil
}

// selfSigned returns a certificate, and a pool that trusts it.
func selfSigned() (tls.Certificate, *x509.CertPool) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"example.test"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		panic(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	trusted := x509.NewCertPool()
	trusted.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, trusted
}
