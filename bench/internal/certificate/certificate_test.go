package certificate

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"testing"
)

// handshake connects a client to a server.
func handshake(t *testing.T, server, client *tls.Config) error {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	served := make(chan error, 1)
	go func() { served <- tls.Server(a, server).Handshake() }()
	err := tls.Client(b, client).Handshake()
	b.Close()
	return errors.Join(err, <-served)
}

func TestClientsTrustTheServer(t *testing.T) {
	server, err := Server()
	if err != nil {
		t.Fatal(err)
	}
	client, err := Client()
	if err != nil {
		t.Fatal(err)
	}
	if err := handshake(t, server, client); err != nil {
		t.Error(err)
	}
	client.RootCAs = x509.NewCertPool()
	if err := handshake(t, server, client); err == nil {
		t.Error("a client that trusts nothing took the certificate")
	}
}

// TestTheCertificateIsTheSameInEachProcess checks that a signature has nothing random in it.
func TestTheCertificateIsTheSameInEachProcess(t *testing.T) {
	first, err := made()
	if err != nil {
		t.Fatal(err)
	}
	again, err := x509.CreateCertificate(nil, first.Leaf, first.Leaf, first.Leaf.PublicKey, first.PrivateKey)
	if err != nil || !bytes.Equal(again, first.Certificate[0]) {
		t.Errorf("made again it differs, %v", err)
	}
}
