// Command server serves Probe for the benchmark of @nearcall/web, and prints where:
//
//   - a nearcall server on its own port, for calls over ws: and over HTTP/1.1;
//   - net/http on a port with TLS, for calls over HTTP/2, which connect-go serves, and over wss:.
//
// It ends with its standard input.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/grpc"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/web/testserver/probe"
	"github.com/nearcall/nearcall/web/testserver/probepb"
)

func main() {
	log.SetFlags(0)
	service := new(service)
	srv := nearcall.NewServer()
	probepb.RegisterProbeServer(srv, service)
	lis, err := nearcall.Listen("ws://127.0.0.1:0/calls")
	if err != nil {
		log.Fatal(err)
	}
	certificate, err := newCertificate()
	if err != nil {
		log.Fatal(err)
	}
	secure, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}

	mux := http.NewServeMux()
	mux.Handle("/calls", srv.WebSockets())
	plain := connect.WithCompression("gzip", nil, nil) // by default it compresses the smallest messages, which takes longer
	mux.Handle(probepb.Probe_Echo_FullMethodName, connect.NewUnaryHandlerSimple(probepb.Probe_Echo_FullMethodName, service.Echo, plain))
	mux.Handle(probepb.Probe_List_FullMethodName, connect.NewServerStreamHandlerSimple(probepb.Probe_List_FullMethodName, service.list, plain))
	pages := http.Server{
		Handler:   mux,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}},
		ErrorLog:  log.New(io.Discard, "", 0), // of connections that the browser breaks
	}
	go func() { log.Fatal(pages.ServeTLS(secure, "", "")) }()
	go func() { log.Fatal(srv.Serve(lis)) }()

	fmt.Println(strings.TrimSuffix(strings.Replace(lis.Target(), "ws", "http", 1), "/calls"), "https://"+secure.Addr().String())
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// A service is Probe with another List. Its notes have text instead of bytes, because JSON encodes
// bytes as base64.
type service struct{ probe.Server }

// List implements Probe.
func (s *service) List(in *probepb.ListRequest, out grpc.ServerStreamingServer[probepb.Note]) error {
	return send(in, out.Send)
}

// list is List with the parameters that connect-go passes to a handler.
func (s *service) list(_ context.Context, in *probepb.ListRequest, out *connect.ServerStream[probepb.Note]) error {
	return send(in, out.Send)
}

func send(in *probepb.ListRequest, to func(*probepb.Note) error) error {
	text := strings.Repeat("x", int(in.Size))
	for i := range int64(in.Count) {
		if err := to(&probepb.Note{Text: text, N: i}); err != nil {
			return err
		}
	}
	return nil
}

func newCertificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
