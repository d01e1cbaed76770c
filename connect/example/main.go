// Command connect is a service with Connect's generated code on a nearcall server, and its clients.
//
//	go run . serve      serves at a unix socket, which becomes shared memory on Linux, and at a port for HTTP
//	go run . connect    calls it with Connect's generated code, over the socket
//	go run . grpc       calls it with gRPC's generated code, over the socket
//
// While it serves, http://localhost:8080 is a page that calls it with clients of connect-es: over a
// WebSocket with @nearcall/web, streams both ways, and over HTTP with connect-web. Its script is in
// web/greeter, and make web-pages builds page.js from it. curl calls the server, too:
//
//	curl --json '{"name": "curl"}' http://localhost:8080/greet.v1.Greeter/Greet
package main

import (
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"connectrpc.com/connect/v2"
	"google.golang.org/grpc/reflection"

	"github.com/nearcall/nearcall"
	nearconnect "github.com/nearcall/nearcall/connect"
	pb "github.com/nearcall/nearcall/connect/example/greetpb"
	"github.com/nearcall/nearcall/connect/example/greetpb/greetpbconnect"
)

var (
	socket = flag.String("socket", filepath.Join(os.TempDir(), "nearcall-connect.sock"), "where the server listens")
	port   = flag.String("http", "localhost:8080", "where the server listens for HTTP")
)

func main() {
	flag.Parse()
	ctx := context.Background()
	var err error
	switch flag.Arg(0) {
	case "serve":
		err = serve()
	case "connect":
		err = call(ctx, withConnect)
	case "grpc":
		err = call(ctx, withGRPC)
	default:
		err = errors.New("usage: connect [flags] serve|connect|grpc")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// A greeter implements the interface that protoc-gen-connect-go has generated.
type greeter struct {
	greetpbconnect.UnimplementedGreeterHandler
}

func (greeter) Greet(ctx context.Context, req *pb.GreetRequest) (*pb.GreetReply, error) {
	if req.GetName() == "" {
		return nil, errNameless
	}
	return &pb.GreetReply{Text: "Hello, " + req.GetName()}, nil
}

func (greeter) Meet(_ context.Context, stream greetpbconnect.GreeterMeetServerStream) error {
	var guests []string
	for {
		req, err := stream.Receive()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if req.GetName() == "" {
			return errNameless
		}
		text := "Hello, " + req.GetName()
		if len(guests) > 0 {
			text += ", meet " + strings.Join(guests, " and ")
		}
		if err := stream.Send(&pb.GreetReply{Text: text}); err != nil {
			return err
		}
		guests = append(guests, req.GetName())
	}
}

var errNameless = connect.NewError(connect.CodeInvalidArgument, "who are you?")

//go:embed page.html page.js
var page embed.FS

// serve serves until one of the listeners fails.
func serve() error {
	server := connect.NewServer()
	greetpbconnect.RegisterGreeterHandler(server, greeter{})
	srv := nearcall.NewServer()
	nearconnect.Register(srv, server)
	reflection.Register(srv) // a service of gRPC on the same server, for tools such as nearcall call

	lis, err := nearcall.Listen("unix:" + *socket)
	if err != nil {
		return err
	}
	web, err := net.Listen("tcp", *port)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/"+greetpbconnect.GreeterName+"/", srv)
	mux.Handle("/calls", srv.WebSockets())
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, r *http.Request) { http.ServeFileFS(w, r, page, "page.html") })
	mux.Handle("/page.js", http.FileServerFS(page))
	fmt.Printf("serving at unix:%s and http://%s\n", *socket, web.Addr())
	failed := make(chan error, 2)
	site := &http.Server{Handler: mux, HTTP2: &http.HTTP2Config{MaxEncoderHeaderTableSize: 1}} // see ServeHTTP
	go func() { failed <- site.Serve(web) }()
	go func() { failed <- srv.Serve(lis) }()
	return <-failed
}

// call connects to the server and makes a call.
func call(ctx context.Context, with func(context.Context, *nearcall.ClientConn) (*pb.GreetReply, error)) error {
	conn, err := nearcall.NewClient("unix:" + *socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	reply, err := with(ctx, conn)
	if err != nil {
		return err
	}
	fmt.Println(reply.GetText())
	return nil
}

func withConnect(ctx context.Context, conn *nearcall.ClientConn) (*pb.GreetReply, error) {
	client := greetpbconnect.NewGreeterClient(connect.NewClient(nearconnect.NewTransport(conn)))
	return client.Greet(ctx, &pb.GreetRequest{Name: "Connect"})
}

func withGRPC(ctx context.Context, conn *nearcall.ClientConn) (*pb.GreetReply, error) {
	return pb.NewGreeterClient(conn).Greet(ctx, &pb.GreetRequest{Name: "gRPC"})
}
