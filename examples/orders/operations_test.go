package orders_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	pb "github.com/nearcall/nearcall/examples/orders/orderspb"
)

// This file is the code of docs/operations.md.

func drain(srv *nearcall.Server, probed *health.Server, notice, patience time.Duration) error {
	probed.Shutdown()
	time.Sleep(notice)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return srv.Shutdown(ctx) // context.DeadlineExceeded if it has cancelled calls
}

// A probe is an ordinary gRPC client. It sees that the server will stop, and the calls of others go on.
func TestProbesSeeThatTheServerDrains(t *testing.T) {
	srv, probed := nearcall.NewServer(), health.NewServer()
	pb.RegisterOrdersServer(srv, &teaShop{stock: 5})
	healthpb.RegisterHealthServer(srv, probed)
	lis, err := nearcall.Listen("tcp:127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	conn, err := grpc.NewClient(strings.TrimPrefix(lis.Target(), "tcp:"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	watch, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	drained := make(chan error, 1)
	for _, want := range []healthpb.HealthCheckResponse_ServingStatus{healthpb.HealthCheckResponse_SERVING, healthpb.HealthCheckResponse_NOT_SERVING} {
		if got, err := watch.Recv(); err != nil || got.GetStatus() != want {
			t.Fatalf("the probe sees %v, %v, want %v", got.GetStatus(), err, want)
		}
		if want == healthpb.HealthCheckResponse_SERVING {
			go func() { drained <- drain(srv, probed, 0, time.Minute) }()
		}
	}
	_ = conn.Close() // ends Watch, which Shutdown waits for
	if err := <-drained; err != nil {
		t.Errorf("drain returns %v", err)
	}
	<-served
}

func renewed(cert, key string, clients *x509.CertPool) *tls.Config {
	return &tls.Config{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			c, err := tls.LoadX509KeyPair(cert, key)
			return &c, err
		},
		ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert,
	}
}

func only(id string) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		var got string
		if p, ok := peer.FromContext(ctx); ok {
			if secured, ok := p.AuthInfo.(credentials.TLSInfo); ok && secured.SPIFFEID != nil {
				got = secured.SPIFFEID.String()
			}
		}
		if got != id {
			return nil, status.Errorf(codes.PermissionDenied, "the client is %q, not %q", got, id)
		}
		return handler(ctx, req)
	}
}

func TestRenewedCertificatesAreUsedAndClientsAreKnown(t *testing.T) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	authority := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	sign := func(c *x509.Certificate) []byte {
		c.NotAfter = authority.NotAfter
		der, err := x509.CreateCertificate(rand.Reader, c, authority, private.Public(), private)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	pool := x509.NewCertPool()
	if authority, err = x509.ParseCertificate(sign(authority)); err != nil {
		t.Fatal(err)
	}
	pool.AddCert(authority)
	client := func(target, id string) *nearcall.ClientConn {
		uri, err := url.Parse(id)
		if err != nil {
			t.Fatal(err)
		}
		der := sign(&x509.Certificate{SerialNumber: big.NewInt(2), URIs: []*url.URL{uri}})
		conn, err := nearcall.NewClient(target, nearcall.WithTransportCredentials(nearcall.NewTLS(&tls.Config{
			RootCAs: pool, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: private}},
		})))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	cert, key := filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	write := func(path, kind string, der []byte) {
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	write(key, "PRIVATE KEY", der)

	const shop = "spiffe://example.org/shop"
	target := guided(t, "tcp:127.0.0.1:0", nearcall.Creds(nearcall.NewTLS(renewed(cert, key, pool))), nearcall.ChainUnaryInterceptor(only(shop)))
	for serial := int64(10); serial < 12; serial++ {
		write(cert, "CERTIFICATE", sign(&x509.Certificate{SerialNumber: big.NewInt(serial), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}))
		var server peer.Peer
		if _, err := pb.NewOrdersClient(client(target, shop)).Place(t.Context(), &pb.PlaceRequest{Item: "tea"}, grpc.Peer(&server)); err != nil {
			t.Fatal(err)
		}
		if got := server.AuthInfo.(credentials.TLSInfo).State.PeerCertificates[0].SerialNumber; got.Int64() != serial {
			t.Errorf("the server's certificate is number %v, want %d", got, serial)
		}
	}
	_, err = pb.NewOrdersClient(client(target, "spiffe://example.org/other")).Place(t.Context(), &pb.PlaceRequest{Item: "tea"})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("another client gets %v", err)
	}
}
