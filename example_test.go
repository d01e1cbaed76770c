package nearcall_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/testdata"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/examples/orders/orderspb"
	"github.com/nearcall/nearcall/examples/quickstart/greetpb"
)

// A teaShop implements the Orders service, as it would for grpc-go.
type teaShop struct {
	orderspb.UnimplementedOrdersServer
}

func (teaShop) Place(_ context.Context, req *orderspb.PlaceRequest) (*orderspb.Order, error) {
	if req.GetItem() != "tea" {
		return nil, status.Errorf(codes.NotFound, "no %s here", req.GetItem())
	}
	return &orderspb.Order{Id: 1, Item: req.GetItem(), Quantity: req.GetQuantity()}, nil
}

// A server and its client in one process. The generated code is the same as for grpc-go;
// only the constructors are nearcall's.
func Example() {
	srv := nearcall.NewServer()
	defer srv.Stop()
	orderspb.RegisterOrdersServer(srv, teaShop{})

	conn := srv.Client()
	defer conn.Close()
	client := orderspb.NewOrdersClient(conn)

	ctx := context.Background()
	order, err := client.Place(ctx, &orderspb.PlaceRequest{Item: "tea", Quantity: 2})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("order %d: %d %s\n", order.GetId(), order.GetQuantity(), order.GetItem())

	_, err = client.Place(ctx, &orderspb.PlaceRequest{Item: "coffee", Quantity: 1})
	fmt.Println(err)
	// Output:
	// order 1: 2 tea
	// rpc error: code = NotFound desc = no coffee here
}

// Parts of a program that do not share a variable connect by name. The client can be
// created first: with WaitForReady its calls wait for the server.
func ExampleListen() {
	conn, err := nearcall.NewClient("inproc:health")
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	srv := nearcall.NewServer()
	defer srv.Stop()
	healthpb.RegisterHealthServer(srv, health.NewServer())
	lis, err := nearcall.Listen("inproc:health")
	if err != nil {
		log.Fatal(err)
	}
	go srv.Serve(lis)

	reply, err := healthpb.NewHealthClient(conn).Check(context.Background(),
		&healthpb.HealthCheckRequest{}, grpc.WaitForReady(true))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(reply.Status)
	// Output: SERVING
}

// A program that has a connection needs no listener: the server serves one end and the client's
// dial function returns the other. Here a net.Pipe stands for a pair of sockets that a child
// process has inherited, a hijacked stream, or a channel of SSH. The client dials again when it
// loses its connection, so the dial function makes a pair for each.
func ExampleServer_ServeConn() {
	srv := nearcall.NewServer()
	defer srv.Stop()
	healthpb.RegisterHealthServer(srv, health.NewServer())

	conn, err := nearcall.NewClient("unix:helper", nearcall.WithContextDialer(func(context.Context, string) (net.Conn, error) {
		near, far := net.Pipe()
		go srv.ServeConn(far)
		return near, nil
	}))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	reply, err := healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(reply.Status)
	// Output: SERVING
}

// A library that dials itself makes its calls through a nearcall connection.
func ExampleClientConn_DialOptions() {
	srv := nearcall.NewServer()
	defer srv.Stop()
	healthpb.RegisterHealthServer(srv, health.NewServer())
	conn := srv.Client()
	defer conn.Close()

	// What a library does with the options that it takes.
	library := func(opts ...grpc.DialOption) (*grpc.ClientConn, error) {
		opts = append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, opts...)
		return grpc.NewClient("health.example.com", opts...)
	}
	cc, err := library(conn.DialOptions()...)
	if err != nil {
		log.Fatal(err)
	}
	defer cc.Close()
	reply, err := healthpb.NewHealthClient(cc).Check(context.Background(), &healthpb.HealthCheckRequest{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(reply.Status)
	// Output: SERVING
}

// Streams work as they do over a network: the handler runs concurrently with the caller,
// flow control limits how far it gets ahead, and the caller's context cancels it.
func ExampleClientConn_NewStream() {
	status := health.NewServer()
	srv := nearcall.NewServer()
	defer srv.Stop()
	healthpb.RegisterHealthServer(srv, status)
	conn := srv.Client()
	defer conn.Close()

	ctx, cancel := context.WithCancel(context.Background())
	stream, err := healthpb.NewHealthClient(conn).Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		reply, err := stream.Recv()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(reply.Status)
		status.Shutdown() // makes the handler send NOT_SERVING
	}
	cancel()
	for err == nil {
		_, err = stream.Recv()
	}
	fmt.Println(err == io.EOF, err)
	// Output:
	// SERVING
	// NOT_SERVING
	// false rpc error: code = Canceled desc = context canceled
}

// Interceptors, metadata and statuses have grpc-go's types.
func ExampleChainUnaryInterceptor() {
	authorize := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		if len(md.Get("authorization")) == 0 {
			return nil, status.Errorf(codes.Unauthenticated, "%s needs a token", info.FullMethod)
		}
		return handler(ctx, req)
	}
	srv := nearcall.NewServer(nearcall.ChainUnaryInterceptor(authorize))
	defer srv.Stop()
	healthpb.RegisterHealthServer(srv, health.NewServer())
	conn := srv.Client()
	defer conn.Close()
	client := healthpb.NewHealthClient(conn)

	ctx := context.Background()
	_, err := client.Check(ctx, &healthpb.HealthCheckRequest{})
	fmt.Println(err)
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "token")
	reply, err := client.Check(ctx, &healthpb.HealthCheckRequest{})
	fmt.Println(reply.GetStatus(), err)
	// Output:
	// rpc error: code = Unauthenticated desc = /grpc.health.v1.Health/Check needs a token
	// SERVING <nil>
}

// HandlerPlacement(Inline) runs handlers on their callers' goroutines even if the caller has a
// deadline. That is safe for handlers that are quick or watch their contexts.
func ExampleHandlerPlacement() {
	srv := nearcall.NewServer(nearcall.HandlerPlacement(nearcall.Inline))
	defer srv.Stop()
	healthpb.RegisterHealthServer(srv, health.NewServer())
	conn := srv.Client()
	defer conn.Close()

	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	reply, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	fmt.Println(reply.GetStatus(), err)
	// Output: SERVING <nil>
}

// The targets and options of grpc-go: its resolver finds the servers, and each is called over the
// nearest path that it speaks.
func ExampleNewClient() {
	conn, err := nearcall.NewClient("localhost:50051",
		nearcall.WithTransportCredentials(insecure.NewCredentials()),
		nearcall.WithUserAgent("example"))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	fmt.Println(conn.Target(), conn.GetState())
	// Output: localhost:50051 IDLE
}

// One server on one port, for ordinary gRPC clients and for nearcall's own.
func Example_network() {
	srv := nearcall.NewServer()
	defer srv.Stop()
	healthpb.RegisterHealthServer(srv, health.NewServer())
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go srv.Serve(lis)

	ordinary, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer ordinary.Close()
	near, err := nearcall.NewClient("tcp:" + lis.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer near.Close()

	for _, conn := range []grpc.ClientConnInterface{ordinary, near} {
		reply, err := healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(reply.Status)
	}
	// Output:
	// SERVING
	// SERVING
}

// Two processes on one machine connect through a unix socket, which needs no credentials.
// On Linux the connection becomes shared memory if both have the same user.
func Example_unix() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	srv := nearcall.NewServer()
	defer srv.Stop()
	healthpb.RegisterHealthServer(srv, health.NewServer())
	lis, err := nearcall.Listen("unix:" + filepath.Join(dir, "health.sock"))
	if err != nil {
		log.Fatal(err)
	}
	go srv.Serve(lis)

	conn, err := nearcall.NewClient(lis.Target())
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	reply, err := healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(reply.Status)
	// Output: SERVING
}

// TLS over TCP, with grpc-go's credentials on both sides. The example of Creds shows mutual
// TLS.
func Example_tls() {
	serverCreds, err := credentials.NewServerTLSFromFile(testdata.Path("x509/server1_cert.pem"), testdata.Path("x509/server1_key.pem"))
	if err != nil {
		log.Fatal(err)
	}
	srv := nearcall.NewServer(nearcall.Creds(serverCreds))
	defer srv.Stop()
	healthpb.RegisterHealthServer(srv, health.NewServer())
	lis, err := nearcall.Listen("tcp:127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go srv.Serve(lis)

	clientCreds, err := credentials.NewClientTLSFromFile(testdata.Path("x509/server_ca_cert.pem"), "x.test.example.com")
	if err != nil {
		log.Fatal(err)
	}
	conn, err := nearcall.NewClient(lis.Target(), nearcall.WithTransportCredentials(clientCreds))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	reply, err := healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(reply.Status)
	// Output: SERVING
}

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

// One port for gRPC clients, web pages and curl, under TLS: NewTLS agrees on HTTP/2 and on HTTP/1.1,
// with which WebSockets begin, and WebOrigins lets pages of another host make calls.
func ExampleNewTLS() {
	cert, err := tls.LoadX509KeyPair(testdata.Path("x509/server1_cert.pem"), testdata.Path("x509/server1_key.pem"))
	if err != nil {
		log.Fatal(err)
	}
	srv := nearcall.NewServer(
		nearcall.Creds(nearcall.NewTLS(&tls.Config{Certificates: []tls.Certificate{cert}})),
		nearcall.WebOrigins("https://shop.example"))
	defer srv.Stop()
	healthpb.RegisterHealthServer(srv, health.NewServer())
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go srv.Serve(lis)
	address := lis.Addr().String()
	trust := &tls.Config{RootCAs: readPool(testdata.Path("x509/server_ca_cert.pem")), ServerName: "x.test.example.com"}

	// A gRPC client, nearcall's client, and nearcall's client over a WebSocket.
	ordinary, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(trust)))
	if err != nil {
		log.Fatal(err)
	}
	defer ordinary.Close()
	near, err := nearcall.NewClient("tcp:"+address, nearcall.WithTransportCredentials(nearcall.NewTLS(trust)))
	if err != nil {
		log.Fatal(err)
	}
	defer near.Close()
	socket, err := nearcall.NewClient("wss://"+address+"/calls", nearcall.WithTransportCredentials(nearcall.NewTLS(trust)))
	if err != nil {
		log.Fatal(err)
	}
	defer socket.Close()
	for _, conn := range []grpc.ClientConnInterface{ordinary, near, socket} {
		reply, err := healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(reply.Status)
	}

	// A page of shop.example, as fetch sends its requests, and one of another site.
	browser := &http.Client{Transport: &http.Transport{TLSClientConfig: trust, ForceAttemptHTTP2: true}}
	defer browser.CloseIdleConnections()
	for _, origin := range []string{"https://shop.example", "https://evil.example"} {
		req, err := http.NewRequest(http.MethodPost, "https://"+address+"/grpc.health.v1.Health/Check", strings.NewReader("{}"))
		if err != nil {
			log.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Origin", origin)
		resp, err := browser.Do(req)
		if err != nil {
			log.Fatal(err)
		}
		defer resp.Body.Close()
		fmt.Println(origin, resp.Proto, resp.Status)
	}
	// Output:
	// SERVING
	// SERVING
	// SERVING
	// https://shop.example HTTP/2.0 200 OK
	// https://evil.example HTTP/2.0 403 Forbidden
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

// A program's HTTP server has pages and passes calls on: WebSockets at /calls, and gRPC, Connect,
// gRPC-Web and JSON at the paths of the service.
func ExampleServer_ServeHTTP() {
	srv := nearcall.NewServer()
	defer srv.Stop()
	healthpb.RegisterHealthServer(srv, health.NewServer())
	mux := http.NewServeMux()
	mux.Handle("/calls", srv.WebSockets())
	mux.Handle("/grpc.health.v1.Health/", srv)
	mux.Handle("/", http.NotFoundHandler())
	there := httptest.NewUnstartedServer(mux)                            // in a program: an &http.Server{Addr: ":443", Handler: mux}
	there.Config.HTTP2 = &http.HTTP2Config{MaxEncoderHeaderTableSize: 1} // see ServeHTTP
	there.EnableHTTP2 = true
	there.StartTLS()
	defer there.Close()
	address := there.Listener.Addr().String()
	trust := there.Client().Transport.(*http.Transport).TLSClientConfig

	socket, err := nearcall.NewClient("wss://"+address+"/calls", nearcall.WithTransportCredentials(nearcall.NewTLS(trust)))
	if err != nil {
		log.Fatal(err)
	}
	defer socket.Close()
	ordinary, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(trust)))
	if err != nil {
		log.Fatal(err)
	}
	defer ordinary.Close()
	for _, conn := range []grpc.ClientConnInterface{socket, ordinary} {
		reply, err := healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(reply.Status)
	}
	// Output:
	// SERVING
	// SERVING
}

// A bazaar answers each offer, and lowers its price until it meets one.
type bazaar struct {
	orderspb.UnimplementedOrdersServer
}

func (bazaar) Haggle(stream grpc.BidiStreamingServer[orderspb.Offer, orderspb.Answer]) error {
	for ask := int32(500); ; ask -= 50 {
		offer, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil // the client has called CloseSend
		}
		if err != nil {
			return err
		}
		accepted := offer.GetCents() >= ask
		if err := stream.Send(&orderspb.Answer{Accepted: accepted, AskCents: ask}); err != nil {
			return err
		}
		if accepted {
			return nil
		}
	}
}

// A bidirectional stream: client and handler send and receive in turn. Receiving until
// io.EOF ends the stream and frees what it holds.
func ExampleClientConn_NewStream_bidirectional() {
	srv := nearcall.NewServer()
	defer srv.Stop()
	orderspb.RegisterOrdersServer(srv, bazaar{})
	conn := srv.Client()
	defer conn.Close()

	stream, err := orderspb.NewOrdersClient(conn).Haggle(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	for _, cents := range []int32{300, 400, 450} {
		if err := stream.Send(&orderspb.Offer{Item: "tea", Cents: cents}); err != nil {
			log.Fatal(err)
		}
		answer, err := stream.Recv()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("offer:", cents, "ask:", answer.GetAskCents(), "accepted:", answer.GetAccepted())
	}
	if err := stream.CloseSend(); err != nil {
		log.Fatal(err)
	}
	_, err = stream.Recv()
	fmt.Println(err)
	// Output:
	// offer: 300 ask: 500 accepted: false
	// offer: 400 ask: 450 accepted: false
	// offer: 450 ask: 400 accepted: true
	// EOF
}

// A depot answers Await when the order was shipped.
type depot struct {
	orderspb.UnimplementedOrdersServer
	waiting chan struct{} // receives a value when a call waits
	shipped chan struct{} // closed when the order was shipped
}

func (d *depot) Await(ctx context.Context, req *orderspb.AwaitRequest) (*orderspb.Order, error) {
	d.waiting <- struct{}{}
	select {
	case <-d.shipped:
		return &orderspb.Order{Id: req.GetId(), Shipped: true}, nil
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// GracefulStop waits for the call that runs, and refuses those that come later. A program
// calls it when it receives SIGTERM, for example.
func ExampleServer_GracefulStop() {
	service := &depot{waiting: make(chan struct{}), shipped: make(chan struct{})}
	srv := nearcall.NewServer()
	orderspb.RegisterOrdersServer(srv, service)
	conn := srv.Client()
	defer conn.Close()
	client := orderspb.NewOrdersClient(conn)

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	replied := make(chan struct{})
	go func() {
		defer close(replied)
		order, err := client.Await(ctx, &orderspb.AwaitRequest{Id: 1})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("shipped:", order.GetShipped())
	}()
	<-service.waiting // the call runs

	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		srv.GracefulStop()
	}()
	close(service.shipped)
	<-stopped
	<-replied

	_, err := client.Await(ctx, &orderspb.AwaitRequest{Id: 2})
	fmt.Println("after the stop:", status.Code(err))
	// Output:
	// shipped: true
	// after the stop: Unavailable
}

// Shutdown waits for running calls only until its context ends. Then it cancels the contexts of their
// handlers. A program can call it when it receives SIGTERM, with the time that it has left.
func ExampleServer_Shutdown() {
	service := &depot{waiting: make(chan struct{}), shipped: make(chan struct{})} // which is never closed
	srv := nearcall.NewServer()
	orderspb.RegisterOrdersServer(srv, service)
	conn := srv.Client()
	defer conn.Close()

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	replied := make(chan error)
	go func() {
		_, err := orderspb.NewOrdersClient(conn).Await(ctx, &orderspb.AwaitRequest{Id: 1})
		replied <- err
	}()
	<-service.waiting // the call runs

	patience, cancelPatience := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancelPatience()
	fmt.Println("shutdown:", srv.Shutdown(patience))
	fmt.Println("the call:", status.Code(<-replied))
	// Output:
	// shutdown: context deadline exceeded
	// the call: Unavailable
}

// A ledger lists the same orders to every caller. It never modifies an order.
type ledger struct {
	orderspb.UnimplementedOrdersServer
	orders []*orderspb.Order
}

func (l *ledger) List(_ *orderspb.ListRequest, stream grpc.ServerStreamingServer[orderspb.Order]) error {
	for _, order := range l.orders {
		if err := stream.Send(order); err != nil {
			return err
		}
	}
	return nil
}

// If server and client both promise not to modify messages, these are passed on in
// process without a deep copy. To modify a received message, clone it with proto.Clone.
func ExampleImmutableMessages() {
	srv := nearcall.NewServer(nearcall.ImmutableMessages())
	defer srv.Stop()
	orderspb.RegisterOrdersServer(srv, &ledger{orders: []*orderspb.Order{{Item: "tea"}, {Item: "cup"}}})
	conn := srv.Client(nearcall.WithImmutableMessages())
	defer conn.Close()

	stream, err := orderspb.NewOrdersClient(conn).List(context.Background(), &orderspb.ListRequest{})
	if err != nil {
		log.Fatal(err)
	}
	for {
		order, err := stream.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(order.GetItem()) // reads only
	}
	// Output:
	// tea
	// cup
}

// A bulletin sends the same orders to everyone who lists them.
type bulletin struct {
	orderspb.UnimplementedOrdersServer
	once   sync.Once
	orders nearcall.PreparedMsg
	err    error
}

func (b *bulletin) List(_ *orderspb.ListRequest, stream grpc.ServerStreamingServer[orderspb.Order]) error {
	b.once.Do(func() { b.err = b.orders.Encode(stream, &orderspb.Order{Item: "tea", Quantity: 100}) })
	if b.err != nil {
		return b.err
	}
	return stream.SendMsg(&b.orders)
}

// A message that goes to many streams is encoded once.
func ExamplePreparedMsg() {
	srv := nearcall.NewServer()
	defer srv.Stop()
	orderspb.RegisterOrdersServer(srv, &bulletin{})
	conn := srv.Client()
	defer conn.Close()

	for range 3 {
		stream, err := orderspb.NewOrdersClient(conn).List(context.Background(), &orderspb.ListRequest{})
		if err != nil {
			log.Fatal(err)
		}
		order, err := stream.Recv()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(order.GetQuantity(), order.GetItem())
		if _, err := stream.Recv(); err != io.EOF {
			log.Fatal(err)
		}
	}
	// Output:
	// 100 tea
	// 100 tea
	// 100 tea
}

// A host greets its caller by the name that the caller answers to.
type host struct {
	greetpb.UnimplementedGreeterServer
}

func (host) Greet(ctx context.Context, _ *greetpb.GreetRequest) (*greetpb.GreetReply, error) {
	caller := greetpb.NewGreeterClient(nearcall.PeerConn(ctx))
	name, err := caller.Greet(ctx, &greetpb.GreetRequest{Name: "stranger"})
	if err != nil {
		return nil, err
	}
	return &greetpb.GreetReply{Text: "welcome, " + name.GetText()}, nil
}

// A guest answers with its name.
type guest struct {
	greetpb.UnimplementedGreeterServer
}

func (guest) Greet(context.Context, *greetpb.GreetRequest) (*greetpb.GreetReply, error) {
	return &greetpb.GreetReply{Text: "Ada"}, nil
}

// A handler calls the client that has called it, over the same connection.
func ExamplePeerConn() {
	srv := nearcall.NewServer()
	defer srv.Stop()
	greetpb.RegisterGreeterServer(srv, host{})

	own := nearcall.NewServer() // serves the client's end
	defer own.Stop()
	greetpb.RegisterGreeterServer(own, guest{})
	conn := srv.Client(nearcall.WithServer(own))
	defer conn.Close()

	reply, err := greetpb.NewGreeterClient(conn).Greet(context.Background(), &greetpb.GreetRequest{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(reply.GetText())
	// Output: welcome, Ada
}

// A registry checks the health of those who call it.
type registry struct {
	greetpb.UnimplementedGreeterServer
}

func (registry) Greet(ctx context.Context, req *greetpb.GreetRequest) (*greetpb.GreetReply, error) {
	reply, err := healthpb.NewHealthClient(nearcall.PeerConn(ctx)).Check(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		return nil, err
	}
	return &greetpb.GreetReply{Text: fmt.Sprintf("%s is %s", req.GetName(), reply.GetStatus())}, nil
}

// A client has services without its own listener. [WithPersistentConnection] keeps it
// connected, so that a server can call it at any time. The examples directory has a program,
// agent, whose server gives work to such clients.
func ExampleWithServer() {
	lis, err := nearcall.Listen("tcp:127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	srv := nearcall.NewServer()
	defer srv.Stop()
	greetpb.RegisterGreeterServer(srv, registry{})
	go srv.Serve(lis)

	own := nearcall.NewServer()
	defer own.Stop()
	healthpb.RegisterHealthServer(own, health.NewServer())
	conn, err := nearcall.NewClient(lis.Target(), nearcall.WithServer(own), nearcall.WithPersistentConnection())
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	reply, err := greetpb.NewGreeterClient(conn).Greet(context.Background(), &greetpb.GreetRequest{Name: "worker 7"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(reply.GetText())
	// Output: worker 7 is SERVING
}

// A callLog is a stats handler that reports each call when it has ended.
type callLog struct{ ended chan string }

type methodKey struct{}

func (*callLog) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, methodKey{}, info.FullMethodName)
}

func (l *callLog) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if end, ok := s.(*stats.End); ok {
		l.ended <- fmt.Sprint(ctx.Value(methodKey{}), ": ", status.Code(end.Error))
	}
}

func (*callLog) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (*callLog) HandleConn(context.Context, stats.ConnStats)                       {}

// A stats handler written for grpc-go works unchanged. For OpenTelemetry pass
// otelgrpc.NewServerHandler() to StatsHandler, and otelgrpc.NewClientHandler() to
// WithStatsHandler: see the example in the module github.com/nearcall/nearcall/interop/ecosystem.
func ExampleStatsHandler() {
	calls := &callLog{ended: make(chan string, 1)}
	srv := nearcall.NewServer(nearcall.StatsHandler(calls))
	defer srv.Stop()
	orderspb.RegisterOrdersServer(srv, orderspb.UnimplementedOrdersServer{})
	conn := srv.Client()
	defer conn.Close()

	_, err := orderspb.NewOrdersClient(conn).Place(context.Background(), &orderspb.PlaceRequest{Item: "tea"})
	if err == nil {
		log.Fatal("want Unimplemented from a server without the method Place, got OK")
	}
	fmt.Println(<-calls.ended)
	// Output: /nearcall.examples.orders.Orders/Place: Unimplemented
}
