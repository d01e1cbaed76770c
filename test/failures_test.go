package test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/resolver"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

// Go's functions often return the result of another one as it is: net.DialUnix returns a nil
// *net.UnixConn and an error, and as a net.Conn that is not nil. What a program's function returns
// beside an error is not used.

var errFails = errors.New("failed by the test")

// nilBesideError has a function of each kind that returns a nil pointer in an interface, and an error.
type nilBesideError struct {
	credentials.TransportCredentials
}

func (nilBesideError) dial(context.Context, string) (net.Conn, error) {
	return (*net.UnixConn)(nil), errFails
}

func (nilBesideError) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return (*net.UnixConn)(nil), (*credentials.TLSInfo)(nil), errFails
}

func (f nilBesideError) ClientHandshake(_ context.Context, _ string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return f.ServerHandshake(c)
}

func (f nilBesideError) Clone() credentials.TransportCredentials { return f }

func (nilBesideError) stream(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, grpc.Streamer, ...grpc.CallOption) (grpc.ClientStream, error) {
	return (*nilStream)(nil), errFails
}

func (nilBesideError) unary(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) {
	return (*testpb.SimpleResponse)(nil), errFails
}

func (nilBesideError) Scheme() string { return "failing" }

func (nilBesideError) Build(resolver.Target, resolver.ClientConn, resolver.BuildOptions) (resolver.Resolver, error) {
	return (*nilResolver)(nil), errFails
}

type nilStream struct {
	grpc.ClientStream
	_ int
}

type nilResolver struct {
	resolver.Resolver
	_ int
}

func TestWhatAClientsFunctionReturnsBesideAnErrorIsNotUsed(t *testing.T) {
	needs.UnixSockets(t)
	plain := listen(t, "tcp:127.0.0.1:0")
	start(t, serve(t, echo{}), plain)
	lis := listenTCP(t)
	startGRPC(t, lis, echo{})
	f := nilBesideError{insecureCreds()}
	address := strings.TrimPrefix(plain.Target(), "tcp:")
	for _, target := range []string{
		plain.Target(), "ws://" + address, "dns:///" + address, "passthrough:///" + address, "grpc:passthrough:///" + address, "unix:" + t.TempDir() + "/s",
		"tcp:" + lis.Addr().String(), "passthrough:///" + lis.Addr().String(), "unix-abstract:nobody", "failing:///x",
	} {
		path, _, _ := strings.Cut(target, ":")
		if strings.HasPrefix(target, "unix:") && !needs.HasUnixSockets() || path == "unix-abstract" && len(networks()) == 0 {
			continue
		}
		insecure := nearcall.WithTransportCredentials(insecureCreds())
		for what, opts := range map[string][]nearcall.DialOption{
			"a dialer":               {insecure, nearcall.WithContextDialer(f.dial)},
			"credentials":            {nearcall.WithTransportCredentials(f)},
			"a stream's interceptor": {insecure, nearcall.WithStreamInterceptor(f.stream)},
		} {
			if path == "failing" {
				opts = append(opts, nearcall.WithResolvers(f))
			}
			conn, err := nearcall.NewClient(target, opts...)
			if path == "ws" && strings.HasPrefix(what, "credentials") && err != nil {
				continue // it takes none of these
			}
			if err != nil {
				t.Fatal(err)
			}
			client := testpb.NewTestServiceClient(conn)
			if what == "a stream's interceptor" {
				_, err = client.FullDuplexCall(t.Context())
			} else {
				_, err = client.UnaryCall(t.Context(), &testpb.SimpleRequest{})
			}
			nobody := (path == "unix" || path == "unix-abstract") && strings.HasPrefix(what, "credentials") // nothing to shake hands with
			if err == nil || !nobody && !strings.Contains(err.Error(), errFails.Error()) {
				t.Errorf("%s, %s: %v", target, what, err)
			}
			_ = conn.Close()
		}
	}
}

// A failingListener accepts what inner does after two errors, each with a nil pointer.
type failingListener struct {
	net.Listener
	failed int
}

type passing struct{ error }

func (passing) Temporary() bool { return true }
func (passing) Timeout() bool   { return false }

func (l *failingListener) Accept() (net.Conn, error) {
	if l.failed++; l.failed <= 2 {
		return (*net.UnixConn)(nil), passing{errFails}
	}
	return l.Listener.Accept()
}

func TestWhatAServersFunctionReturnsBesideAnErrorIsNotUsed(t *testing.T) {
	certs := newCertificates(t)
	f := nilBesideError{insecureCreds()}
	config := certs.server(nil)
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return new(tls.Config), errFails }
	for what, opts := range map[string][]nearcall.ServerOption{
		"a listener":     nil,
		"credentials":    {nearcall.Creds(f)},
		"NewTLS":         {nearcall.Creds(nearcall.NewTLS(config))},
		"an interceptor": {nearcall.UnaryInterceptor(f.unary)},
	} {
		for _, network := range available(t, "tcp", "unix") {
			t.Run(what+", "+network, func(t *testing.T) {
				inner, err := net.Listen(network, strings.TrimPrefix(targetFor(t, network), network+":"))
				if err != nil {
					t.Fatal(err)
				}
				start(t, serve(t, echo{}, opts...), &failingListener{Listener: inner})
				target := network + ":" + inner.Addr().String()
				var client credentials.TransportCredentials
				if what == "NewTLS" {
					client = nearcall.NewTLS(certs.client(nil))
				}
				for name, call := range map[string]func() error{
					"nearcall":         func() error { return callNear(t, target, client) },
					"grpc-go":          func() error { return callGRPC(t, inner, client) },
					"over a WebSocket": func() error { return callWebSocket(t, inner, client) },
				} {
					if err := call(); (err == nil) != (what == "a listener") {
						t.Errorf("%s: %v", name, err)
					}
				}
			})
		}
	}
	client, _ := connect(t, serve(t, echo{}, nearcall.UnaryInterceptor(f.unary)))
	wantCode(t, <-invoke(t.Context(), client), codes.Unknown)
}
