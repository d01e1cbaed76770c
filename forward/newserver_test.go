package forward_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/testdata"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/forward"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

// A library listens and serves itself, and takes a function that makes its server.
type library struct {
	*grpc.Server
	lis    net.Listener
	served chan error
}

// newLibrary returns a library that serves s over network, a unix socket or TCP.
func newLibrary(t *testing.T, network string, s service, opts ...grpc.ServerOption) *library {
	t.Helper()
	return serveLibrary(t, network, s, forward.NewServer(opts))
}

// serveLibrary is newLibrary with a server that is made already.
func serveLibrary(t *testing.T, network string, s service, srv *grpc.Server) *library {
	t.Helper()
	address := "127.0.0.1:0"
	if network == "unix" {
		needs.UnixSockets(t)
		address = filepath.Join(t.TempDir(), "s")
	}
	lis, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	l := &library{srv, lis, make(chan error, 1)}
	testpb.RegisterTestServiceServer(l.Server, s)
	reflection.RegisterV1(l.Server)
	go func() { l.served <- l.Serve(lis) }()
	t.Cleanup(func() {
		l.Stop()
		if err := <-l.served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return l
}

// near returns a nearcall client of l.
func (l *library) near(t *testing.T, opts ...nearcall.DialOption) *nearcall.ClientConn {
	t.Helper()
	conn, err := nearcall.NewClient(l.lis.Addr().Network()+":"+l.lis.Addr().String(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// ordinary returns an ordinary gRPC client of l.
func (l *library) ordinary(t *testing.T, creds credentials.TransportCredentials) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///server", grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, l.lis.Addr().Network(), l.lis.Addr().String())
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestNewServerTakesClientsOfBothKinds(t *testing.T) {
	serverTLS, err := credentials.NewServerTLSFromFile(testdata.Path("x509/server1_cert.pem"), testdata.Path("x509/server1_key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	clientTLS, err := credentials.NewClientTLSFromFile(testdata.Path("x509/server_ca_cert.pem"), "x.test.example.com")
	if err != nil {
		t.Fatal(err)
	}
	for _, network := range []string{"unix", "tcp"} {
		for name, creds := range map[string]struct {
			server []grpc.ServerOption
			client credentials.TransportCredentials
		}{
			"plain":    {nil, insecure.NewCredentials()},
			"insecure": {[]grpc.ServerOption{grpc.Creds(insecure.NewCredentials())}, insecure.NewCredentials()},
			"TLS":      {[]grpc.ServerOption{grpc.Creds(serverTLS)}, clientTLS},
		} {
			t.Run(network+"/"+name, func(t *testing.T) {
				var secure []bool
				l := newLibrary(t, network, service{unary: func(ctx context.Context) error {
					p, _ := peer.FromContext(ctx)
					_, ok := p.AuthInfo.(credentials.TLSInfo)
					secure = append(secure, ok)
					return nil
				}}, creds.server...)
				near := l.near(t, nearcall.WithTransportCredentials(creds.client))
				conns := []grpc.ClientConnInterface{l.ordinary(t, creds.client), near}
				var over []string
				for _, conn := range conns {
					client := testpb.NewTestServiceClient(conn)
					var server peer.Peer
					if _, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: payload(1 << 20)}, grpc.Peer(&server)); err != nil {
						t.Fatal(err)
					}
					over = append(over, server.Addr.Network())
					s, err := client.FullDuplexCall(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					for range 3 {
						if err := s.Send(&request{Payload: payload(10)}); err != nil {
							t.Fatal(err)
						}
						if _, err := s.Recv(); err != nil {
							t.Fatal(err)
						}
					}
					if err := s.CloseSend(); err != nil {
						t.Fatal(err)
					}
					if _, err := s.Recv(); err != io.EOF {
						t.Errorf("at the end: %v", err)
					}
				}
				for _, is := range secure {
					if is != (name == "TLS") {
						t.Errorf("the handlers find TLS: %v", secure)
					}
				}
				want := network
				if network == "unix" && runtime.GOOS == "linux" && creds.server == nil { // with the library's credentials it speaks gRPC
					want = "shm"
				}
				if !slices.Equal(over, []string{network, want}) {
					t.Errorf("the calls go over %v, want %v for nearcall's client", over, want)
				}
			})
		}
	}
}

func TestOptionsOfNewServerApplyToNearcallsClients(t *testing.T) {
	var seen []string
	l := newLibrary(t, "tcp", service{},
		grpc.MaxRecvMsgSize(100),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			seen = append(seen, info.FullMethod)
			return next(ctx, req)
		}),
		grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error { return errors.New("nobody knows") }))
	conn := l.near(t)
	client := testpb.NewTestServiceClient(conn)
	if _, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: payload(50)}); err != nil {
		t.Error(err)
	}
	_, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: payload(100)})
	wantCode(t, "a large message", err, codes.ResourceExhausted)
	if err == nil || !strings.Contains(err.Error(), "vs. 100") {
		t.Errorf("the limit is not the library's: %v", err)
	}
	err = conn.Invoke(t.Context(), "/no/Such", &testpb.Empty{}, new(testpb.Empty))
	wantCode(t, "an unknown service", err, codes.Unknown)
	if !slices.Equal(seen, []string{testpb.TestService_UnaryCall_FullMethodName}) {
		t.Errorf("the interceptor has seen %q", seen)
	}
}

func TestStopOfNewServerEndsNearcallsConnections(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			running, ended := make(chan struct{}), make(chan error, 1)
			l := newLibrary(t, network, service{unary: func(ctx context.Context) error {
				running <- struct{}{}
				<-ctx.Done()
				ended <- ctx.Err()
				return ctx.Err()
			}})
			conn := l.near(t)
			done := make(chan error, 1)
			go func() {
				_, err := testpb.NewTestServiceClient(conn).UnaryCall(t.Context(), &testpb.SimpleRequest{})
				done <- err
			}()
			<-running
			l.Stop()
			wantCode(t, "the call that ran", <-done, codes.Unavailable)
			if err := <-ended; err != context.Canceled {
				t.Errorf("the handler's context: %v", err)
			}
			for conn.GetState() == connectivity.Ready {
				conn.WaitForStateChange(t.Context(), connectivity.Ready)
			}
		})
	}
}

// Plugins are stopped by a call.
func TestAHandlerCanStopNewServer(t *testing.T) {
	var l *library
	stopped := make(chan struct{})
	l = newLibrary(t, "unix", service{unary: func(context.Context) error {
		l.Stop()
		close(stopped)
		return nil
	}})
	_, err := testpb.NewTestServiceClient(l.near(t)).UnaryCall(t.Context(), &testpb.SimpleRequest{})
	wantCode(t, "the call", err, codes.Unavailable)
	<-stopped
}

// GracefulStop waits for the calls of nearcall's clients. Stop cuts it short.
func TestGracefulStopOfNewServerWaitsForNearcallsCalls(t *testing.T) {
	for name, end := range map[string]struct {
		stop bool
		want codes.Code
	}{"GracefulStop": {false, codes.OK}, "Stop during it": {true, codes.Unavailable}} {
		t.Run(name, func(t *testing.T) {
			running, release := make(chan struct{}), make(chan struct{})
			l := newLibrary(t, "unix", service{unary: func(ctx context.Context) error {
				close(running)
				select {
				case <-release:
				case <-ctx.Done():
				}
				return ctx.Err()
			}})
			client := testpb.NewTestServiceClient(l.near(t))
			done := make(chan error, 1)
			go func() {
				_, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{})
				done <- err
			}()
			<-running
			stopped := make(chan struct{})
			go func() {
				l.GracefulStop()
				close(stopped)
			}()
			leak.Eventually(t, "the server takes no more calls", func() bool {
				_, err := client.EmptyCall(t.Context(), &testpb.Empty{})
				return err != nil && strings.Contains(err.Error(), "connect")
			})
			select {
			case <-stopped:
				t.Error("GracefulStop does not wait")
			default:
			}
			if end.stop {
				l.Stop()
			} else {
				close(release)
			}
			wantCode(t, "the call that ran", <-done, end.want)
			<-stopped
		})
	}
}

// When GracefulStop returns the program may exit, so what nearcall's clients get is written.
func TestGracefulStopOfNewServerWaitsUntilRepliesAreWritten(t *testing.T) {
	const size = 1 << 16
	for range 20 {
		running, release := make(chan struct{}), make(chan struct{})
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		counted := &counting{Listener: lis}
		l := &library{forward.NewServer(nil), lis, make(chan error, 1)}
		testpb.RegisterTestServiceServer(l.Server, service{unary: func(context.Context) error {
			close(running)
			<-release
			return nil
		}})
		go func() { l.served <- l.Serve(counted) }()
		near := l.near(t)
		done := make(chan error, 1)
		go func() {
			_, err := testpb.NewTestServiceClient(near).UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: payload(size)})
			done <- err
		}()
		<-running
		go close(release)
		l.GracefulStop()
		if n := counted.written.Load(); n < size {
			t.Errorf("GracefulStop has returned, and the server has written %d bytes", n)
		}
		if err := <-done; err != nil {
			t.Errorf("the call that ran: %v", err)
		}
		if err := <-l.served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	}
}

// A counting listener counts what is written to its connections.
type counting struct {
	net.Listener
	written atomic.Int64
}

func (l *counting) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return counted{conn, &l.written}, err
}

type counted struct {
	net.Conn
	written *atomic.Int64
}

func (c counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.written.Add(int64(n))
	return n, err
}

// What is no client of either kind is refused in words, and does not keep the server from stopping.
func TestNewServerRefusesOthers(t *testing.T) {
	l := newLibrary(t, "tcp", service{})
	for sent, want := range map[string]string{
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n": "HTTP/1.1 505 ",
		"\x16\x03\x01\x00\x05hello":         "nearcall/1\n",
		"nearcall/2\n":                      "",
		"PR":                                "",
	} {
		conn, err := net.Dial("tcp", l.lis.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, sent); err != nil {
			t.Error(err)
		}
		_ = conn.(*net.TCPConn).CloseWrite()
		got, _ := io.ReadAll(conn)
		if !strings.HasPrefix(string(got), want) {
			t.Errorf("%q is answered with %q", sent, got)
		}
		_ = conn.Close()
	}
}

// An onTag calls a function with the context of each call.
type onTag func(context.Context)

func (f onTag) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	f(ctx)
	return ctx
}
func (onTag) HandleRPC(context.Context, stats.RPCStats)                         {}
func (onTag) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (onTag) HandleConn(context.Context, stats.ConnStats)                       {}

// Interceptors and stats handlers get it, too.
func TestHandlersOfNewServerGetTheirCallersPeer(t *testing.T) {
	for _, network := range []string{"unix", "tcp"} {
		var mu sync.Mutex
		seen := map[string]int{}
		look := func(who string) func(context.Context) error {
			return func(ctx context.Context) error {
				p, _ := peer.FromContext(ctx)
				kind := "of gRPC"
				if p.AuthInfo != nil {
					kind = p.AuthInfo.AuthType()
				}
				mu.Lock()
				defer mu.Unlock()
				seen[who+" "+p.Addr.Network()+" "+kind]++
				return nil
			}
		}
		inner := look("stats")
		l := newLibrary(t, network, service{unary: look("handler")},
			grpc.StatsHandler(onTag(func(ctx context.Context) { _ = inner(ctx) })),
			grpc.UnaryInterceptor(func(ctx context.Context, in any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
				_ = look("interceptor")(ctx)
				return next(ctx, in)
			}))
		for _, conn := range []grpc.ClientConnInterface{
			l.ordinary(t, insecure.NewCredentials()),
			l.near(t, nearcall.WithDisableSharedMemory()),
		} {
			if _, err := testpb.NewTestServiceClient(conn).UnaryCall(t.Context(), &testpb.SimpleRequest{}); err != nil {
				t.Fatal(err)
			}
		}
		want := map[string]int{}
		for _, who := range []string{"stats", "interceptor", "handler"} {
			want[who+" "+network+" of gRPC"]++ // the ordinary client's
			want[who+" "+network+" "+map[string]string{"unix": "local", "tcp": "insecure"}[network]]++
		}
		mu.Lock()
		if !maps.Equal(seen, want) {
			t.Errorf("%s: seen is %v, want %v", network, seen, want)
		}
		mu.Unlock()
	}
}

// A client that says nothing more does not keep the server from stopping.
func TestStopOfNewServerEndsHandshakes(t *testing.T) {
	l := newLibrary(t, "tcp", service{})
	conn, err := net.Dial("tcp", l.lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "nearcall/1\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil { // the server has begun the handshake
		t.Fatal(err)
	}
	leak.Within(t, 30*time.Second, "Stop", l.Stop)
}

func TestNewServerWithLimitsMessagesOfNearcallsClients(t *testing.T) {
	for _, c := range []struct {
		name    string
		newFunc func([]grpc.ServerOption) *grpc.Server
		limit   int
	}{
		{"by default", forward.NewServer, 4 << 20},
		{"of 6 MiB", forward.NewServerWith(nearcall.MaxRecvMsgSize(6 << 20)), 6 << 20},
	} {
		l := serveLibrary(t, "unix", service{}, c.newFunc([]grpc.ServerOption{grpc.MaxRecvMsgSize(16 << 20)}))
		client := testpb.NewTestServiceClient(l.near(t, nearcall.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20))))
		if _, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: payload(c.limit - 100)}); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		_, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: payload(c.limit)})
		wantCode(t, c.name+", a large message", err, codes.ResourceExhausted)
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("vs. %d", c.limit)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
