// Command conformanceserver runs the service of the Connect conformance tests on nearcall.
// connectconformance, or its client in web/conformance, starts it, writes a
// ServerCompatRequest to its standard input, and reads from its standard output where it
// listens.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"log"
	"net"
	"os"

	"connectrpc.com/connect/v2"
	"google.golang.org/grpc/credentials"
	_ "google.golang.org/grpc/encoding/gzip"

	"github.com/nearcall/nearcall"
	nearconnect "github.com/nearcall/nearcall/connect"
	pb "github.com/nearcall/nearcall/interop/connect/conformancepb"
	"github.com/nearcall/nearcall/interop/connect/internal/delimited"
)

var connectServer = flag.Bool("connect", false, "register the service with a server of Connect v2, and that with nearcall's")

func main() {
	log.SetFlags(0)
	flag.Parse()
	if err := run(); err != nil {
		log.Fatal("conformanceserver: ", err)
	}
}

func run() error {
	var req pb.ServerCompatRequest
	if err := delimited.Read(os.Stdin, &req); err != nil {
		return err
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	opts := []nearcall.ServerOption{nearcall.WebOrigins("*"), nearcall.UnknownServiceHandler(respond)}
	if n := req.MessageReceiveLimit; n > 0 {
		opts = append(opts, nearcall.MaxRecvMsgSize(int(n)))
	}
	if req.UseTls {
		creds, err := credentialsOf(&req)
		if err != nil {
			return err
		}
		opts = append(opts, nearcall.Creds(creds))
	}
	srv := nearcall.NewServer(opts...)
	if *connectServer {
		var services nearconnect.Services
		pb.RegisterConformanceServiceServer(&services, service{})
		nearconnect.Register(srv, nearconnect.NewServer(&services, tellEncoding))
	} else {
		pb.RegisterConformanceServiceServer(srv, service{})
	}
	address := lis.Addr().(*net.TCPAddr)
	resp := &pb.ServerCompatResponse{Host: address.IP.String(), Port: uint32(address.Port), PemCert: req.GetServerCreds().GetCert()}
	if err := delimited.Write(os.Stdout, resp); err != nil {
		return err
	}
	return srv.Serve(lis) // until connectconformance ends the process
}

// tellEncoding tells conformanceclient, in the header, how the request has come: the suites cannot see it.
func tellEncoding(next connect.ServerFunc) connect.ServerFunc {
	return func(ctx context.Context, spec connect.Spec, s connect.ServerStream) error {
		if info, ok := connect.CallInfoForServerContext(ctx); ok {
			info.ResponseHeader().Set("X-Request-Codec", info.Codec)
			info.ResponseHeader().Set("X-Request-Encoding", info.RequestEncoding)
		}
		return next(ctx, spec, s)
	}
}

func credentialsOf(req *pb.ServerCompatRequest) (credentials.TransportCredentials, error) {
	cert, err := tls.X509KeyPair(req.GetServerCreds().GetCert(), req.GetServerCreds().GetKey())
	if err != nil {
		return nil, err
	}
	config := &tls.Config{Certificates: []tls.Certificate{cert}}
	if len(req.ClientTlsCert) > 0 {
		config.ClientCAs = x509.NewCertPool()
		if !config.ClientCAs.AppendCertsFromPEM(req.ClientTlsCert) {
			return nil, errors.New("the client's certificate cannot be read")
		}
		config.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return nearcall.NewTLS(config), nil
}
