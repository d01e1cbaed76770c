package clients

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
	_ "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/examples/orders/orderspb"
	"github.com/nearcall/nearcall/internal/testing/needs"
	"github.com/nearcall/nearcall/loop"
)

// A place is where clients reach a server.
type place struct {
	Name    string
	Address string // HOST:PORT, or the path of a unix socket
	Unix    bool
	CA      string // the file of the server's certificate; empty without TLS
}

// serve starts servers and returns the places where clients reach them. They stop at the end
// of the test.
func serve(t *testing.T) []place {
	needs.UnixSockets(t)
	dir := t.TempDir()
	ca, secured := certificate(t, dir)
	var places []place
	for _, s := range []struct {
		name   string
		onLoop bool
	}{{"goroutines", false}, {"loop", true}} {
		plain, tls := newServer(t, s.onLoop), newServer(t, s.onLoop, nearcall.Creds(secured))
		socket := filepath.Join(dir, s.name)
		places = append(places,
			place{Name: s.name + "_tcp", Address: listen(t, plain, "tcp", "127.0.0.1:0")},
			place{Name: s.name + "_tls", Address: "localhost:" + port(t, listen(t, tls, "tcp", "127.0.0.1:0")), CA: ca},
			place{Name: s.name + "_unix", Address: listen(t, plain, "unix", socket), Unix: true},
		)
	}
	return places
}

func newServer(t *testing.T, onLoop bool, opts ...nearcall.ServerOption) *nearcall.Server {
	srv := nearcall.NewServer(append(opts, nearcall.StatsHandler(encodings{}))...)
	if onLoop {
		l := loop.New()
		t.Cleanup(func() { l.Close(context.Background()) }) // after the server has stopped
		orderspb.RegisterOrdersServer(srv.OnLoop(l), &service{onLoop: true})
	} else {
		orderspb.RegisterOrdersServer(srv, &service{})
	}
	healthpb.RegisterHealthServer(srv, health.NewServer())
	reflection.Register(srv)
	t.Cleanup(srv.Stop)
	return srv
}

// listen makes srv serve a listener of package net, and returns its address.
func listen(t *testing.T, srv *nearcall.Server, network, address string) string {
	lis, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return lis.Addr().String()
}

func port(t *testing.T, address string) string {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// certificate returns the file of a certificate for localhost, and a server's credentials.
func certificate(t *testing.T, dir string) (file string, creds credentials.TransportCredentials) {
	file, _, config := keys(t, dir)
	return file, credentials.NewTLS(config)
}

// keys returns the files of a certificate for localhost and of its key, and a configuration that has
// both and trusts the certificate.
func keys(t *testing.T, dir string) (certFile, keyFile string, config *tls.Config) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"localhost"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, "ca.pem"), filepath.Join(dir, "key.pem")
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
	if err := errors.Join(os.WriteFile(certFile, certPEM, 0o600), os.WriteFile(keyFile, keyPEM, 0o600)); err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certPEM)
	return certFile, keyFile, &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{cert}, PrivateKey: key}}, RootCAs: roots, ClientCAs: roots,
	}
}
