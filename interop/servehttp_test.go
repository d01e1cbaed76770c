package interop

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
)

// TestServeHTTPBehindAnotherHTTP2: the HTTP/2 of golang.org/x/net serves a connection, and the
// server answers gRPC and JSON.
func TestServeHTTPBehindAnotherHTTP2(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := nearcall.NewServer()
	pb.RegisterTestServiceServer(srv, empties{})
	served := make(chan struct{}, 2)
	go func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			go func() {
				//lint:ignore SA1019 programs that moved over from grpc-go call it
				new(http2.Server).ServeConn(conn, &http2.ServeConnOpts{Handler: srv, BaseConfig: &http.Server{HTTP2: &http.HTTP2Config{MaxEncoderHeaderTableSize: 1}}})
				served <- struct{}{}
			}()
		}
	}()
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pb.NewTestServiceClient(conn).EmptyCall(t.Context(), &pb.Empty{}); err != nil {
		t.Error(err)
	}
	_ = conn.Close()
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	resp, err := (&http.Client{Transport: tr}).Post("http://"+lis.Addr().String()+"/grpc.testing.TestService/EmptyCall", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 200 || string(b) != "{}" {
		t.Errorf("%d, %q, %v", resp.StatusCode, b, err)
	}
	_ = resp.Body.Close()
	tr.CloseIdleConnections()
	_ = lis.Close()
	<-served
	<-served
	srv.GracefulStop()
}

// empties is a service with one method.
type empties struct {
	pb.UnimplementedTestServiceServer
}

func (empties) EmptyCall(context.Context, *pb.Empty) (*pb.Empty, error) { return &pb.Empty{}, nil }
