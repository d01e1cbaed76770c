//go:build linux

// Command operations is a server with what operators ask for: it takes its socket from systemd, or
// shares its port with its successor, tells probes how it is, counts its calls, drains when it is
// stopped, reads renewed certificates, limits the rate of calls, and knows its clients by their
// SPIFFE IDs.
// docs/operations.md has commands that show each.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"log"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	pb "github.com/nearcall/nearcall/examples/quickstart/greetpb"
	"github.com/nearcall/nearcall/metrics"
)

var (
	address = flag.String("listen", "127.0.0.1:50051", "the `address` to listen at, unless systemd passes a socket")
	notice  = flag.Duration("notice", 0, "how long probes see NOT_SERVING before the server drains")
	grace   = flag.Duration("grace", 20*time.Second, "how long running calls may take when the server drains")
	rate    = flag.Float64("rate", 0, "the most calls in a second; 0 for no limit")
	cert    = flag.String("cert", "", "PEM `file` of the server's certificate; without it there is no TLS")
	key     = flag.String("key", "", "PEM `file` of its key")
	ca      = flag.String("ca", "", "PEM `file` of the authorities of clients' certificates; without it clients need none")
	client  = flag.String("client", "", "the SPIFFE `ID` of the clients that may call")
)

type greeter struct{ pb.UnimplementedGreeterServer }

func (greeter) Greet(_ context.Context, req *pb.GreetRequest) (*pb.GreetReply, error) {
	return &pb.GreetReply{Text: "Hello, " + req.GetName()}, nil
}

func main() {
	flag.Parse()
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM)
	lis, err := listen(*address)
	if err != nil {
		log.Fatal(err)
	}
	calls := metrics.NewCalls()
	opts := []nearcall.ServerOption{nearcall.StatsHandler(calls)}
	if *cert != "" {
		config, err := rotating(*cert, *key, *ca)
		if err != nil {
			log.Fatal(err)
		}
		opts = append(opts, nearcall.Creds(nearcall.NewTLS(config)))
	}
	if *client != "" {
		opts = append(opts, nearcall.ChainUnaryInterceptor(only(*client)))
	}
	if *rate > 0 {
		opts = append(opts, nearcall.ChainUnaryInterceptor((&limiter{perSecond: *rate}).limit))
	}
	srv := nearcall.NewServer(opts...)
	pb.RegisterGreeterServer(srv, greeter{})
	reflection.Register(srv)
	calls.Register(srv)
	probed := health.NewServer()
	healthpb.RegisterHealthServer(srv, probed)
	go func() {
		<-told
		drain(srv, probed)
	}()
	if err := srv.Serve(lis); err != nil {
		log.Fatal(err)
	}
}

// listen returns the socket that systemd has passed as file 3, or else opens one. Other processes
// of the user can share the port of a socket that listen opens: the system spreads new connections
// over the processes.
func listen(address string) (net.Listener, error) {
	if os.Getenv("LISTEN_PID") == strconv.Itoa(os.Getpid()) {
		f := os.NewFile(3, "the socket from systemd")
		defer f.Close() // FileListener has a copy
		return net.FileListener(f)
	}
	shared := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		failed := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
		if failed != nil {
			return failed
		}
		return err
	}}
	return shared.Listen(context.Background(), "tcp", address)
}

// drain ends the server: probes fail first, then the server takes no more
// calls, and calls that still run after the grace period are cut off.
func drain(srv *nearcall.Server, probed *health.Server) {
	probed.Shutdown()
	time.Sleep(*notice)
	defer time.AfterFunc(*grace, srv.Stop).Stop()
	srv.GracefulStop()
}

// rotating returns a configuration that reads the certificate again for each connection. Open
// connections keep the one that they have.
func rotating(cert, key, ca string) (*tls.Config, error) {
	config := &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		c, err := tls.LoadX509KeyPair(cert, key)
		return &c, err
	}}
	if ca != "" {
		authorities, err := os.ReadFile(ca)
		if err != nil {
			return nil, err
		}
		config.ClientCAs, config.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		config.ClientCAs.AppendCertsFromPEM(authorities)
	}
	return config, nil
}

// only(id) returns an interceptor that refuses all clients except the one with that SPIFFE ID. A
// server with streams needs such an interceptor for streams, too.
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

// A limiter refuses calls beyond a rate. At first it lets the calls of one second through at once,
// and at least one.
type limiter struct {
	perSecond float64

	mu   sync.Mutex
	left float64 // how many calls could pass at the time last
	last time.Time
}

func (l *limiter) limit(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if !strings.HasPrefix(info.FullMethod, "/grpc.health.") && !l.take() {
		return nil, status.Errorf(codes.ResourceExhausted, "more than %v calls in a second", l.perSecond)
	}
	return handler(ctx, req)
}

func (l *limiter) take() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.left = min(l.left+now.Sub(l.last).Seconds()*l.perSecond, max(l.perSecond, 1))
	l.last = now
	if l.left < 1 {
		return false
	}
	l.left--
	return true
}
