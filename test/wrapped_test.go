package test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

// A wrapping is a listener whose connections hide what they are, as those that limit or count
// connections do.
type wrapping struct{ net.Listener }

func (w wrapping) Accept() (net.Conn, error) {
	conn, err := w.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &wrapped{conn}, nil
}

type wrapped struct{ net.Conn }

// checking are credentials that do not encrypt, and check or record the peer instead.
type checking struct {
	credentials.TransportCredentials
	name string
	conn *atomic.Value // the type of the last handshake's connection
}

func newChecking(name string) checking {
	return checking{insecureCreds(), name, new(atomic.Value)}
}

type checked struct{}

func (checked) AuthType() string { return "checked" }

func (c checking) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c.conn.Store(fmt.Sprintf("%T", conn))
	return conn, checked{}, nil
}

func (c checking) ClientHandshake(_ context.Context, _ string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return c.ServerHandshake(conn)
}

func (c checking) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: c.name}
}

func (c checking) Clone() credentials.TransportCredentials { return c }

// TestEveryClientIsServedByEveryListener serves connections that are wrapped, and others, with
// credentials of all kinds. An upgrade is declined where the connection is no socket. Credentials
// get the connection that the listener has accepted, whatever they call themselves.
func TestEveryClientIsServedByEveryListener(t *testing.T) {
	certs := newCertificates(t)
	for _, network := range available(t, "unix", "tcp") {
		for _, wraps := range []bool{true, false} {
			for _, with := range []string{"nothing", "NoUpgrade", "TLS", "insecure", "mine"} {
				t.Run(fmt.Sprintf("%s, wrapped: %v, with %s", network, wraps, with), func(t *testing.T) {
					var p peer.Peer
					var md metadata.MD
					var opts []nearcall.ServerOption
					var client credentials.TransportCredentials
					creds := newChecking(with)
					switch with {
					case "NoUpgrade":
						opts = append(opts, nearcall.DisableSharedMemory())
					case "TLS":
						config := certs.server(nil)
						config.NextProtos = nil
						opts = append(opts, nearcall.Creds(nearcall.NewTLS(config)))
						client = nearcall.NewTLS(certs.client(nil))
					case "insecure", "mine":
						opts = append(opts, nearcall.Creds(creds))
					}
					lis, err := net.Listen(network, strings.TrimPrefix(targetFor(t, network), network+":"))
					if err != nil {
						t.Fatal(err)
					}
					target := network + ":" + lis.Addr().String()
					accepted := map[string]string{"unix": "*net.UnixConn", "tcp": "*net.TCPConn"}[network]
					if wraps {
						lis, accepted = wrapping{lis}, "*test.wrapped"
					}
					start(t, serve(t, seen(&p, &md), opts...), lis)
					for name, call := range map[string]func() error{
						"nearcall":         func() error { return callNear(t, target, client) },
						"without upgrade":  func() error { return callNear(t, target, client, nearcall.WithDisableSharedMemory()) },
						"over a WebSocket": func() error { return callWebSocket(t, lis, client) },
						"grpc-go":          func() error { return callGRPC(t, lis, client) },
						"HTTP/1.1":         func() error { return callHTTP(t, lis, certs, client != nil) },
					} {
						p = peer.Peer{}
						if err := call(); err != nil {
							t.Errorf("%s: %v", name, err)
							continue
						}
						want := map[string]string{"TLS": "tls", "insecure": "checked", "mine": "checked"}[with]
						if p.AuthInfo == nil || want != "" && p.AuthInfo.AuthType() != want {
							t.Errorf("%s: the AuthInfo is %#v", name, p.AuthInfo)
						}
						if want == "checked" && creds.conn.Load() != any(accepted) {
							t.Errorf("%s: the credentials get %v, want %s", name, creds.conn.Load(), accepted)
						}
						if network := p.Addr.Network(); wraps && network == "shm" {
							t.Errorf("%s: a connection that hides its socket was upgraded", name)
						}
					}
				})
			}
		}
	}
}

func callNear(t *testing.T, target string, creds credentials.TransportCredentials, opts ...nearcall.DialOption) error {
	t.Helper()
	if creds != nil {
		opts = append(opts, nearcall.WithTransportCredentials(creds), nearcall.WithAuthority("localhost"))
	}
	conn, err := nearcall.NewClient(target, opts...)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = testpb.NewTestServiceClient(conn).UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: payload(100)})
	return err
}

// dialling returns a dialer that connects to lis, whatever the address.
func dialling(lis net.Listener) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, lis.Addr().Network(), lis.Addr().String())
	}
}

func callWebSocket(t *testing.T, lis net.Listener, creds credentials.TransportCredentials) error {
	t.Helper()
	target := "ws://localhost/"
	if creds != nil {
		target = "wss://localhost/"
	}
	return callNear(t, target, creds, nearcall.WithContextDialer(dialling(lis)))
}

func callGRPC(t *testing.T, lis net.Listener, creds credentials.TransportCredentials) error {
	t.Helper()
	if creds == nil {
		creds = insecureCreds()
	}
	conn, err := grpc.NewClient("passthrough:localhost", grpc.WithTransportCredentials(creds), grpc.WithContextDialer(dialling(lis)))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = testpb.NewTestServiceClient(conn).UnaryCall(t.Context(), &testpb.SimpleRequest{})
	return err
}

func callHTTP(t *testing.T, lis net.Listener, certs certificates, secure bool) error {
	t.Helper()
	target, config := "http://localhost", certs.client(nil)
	if secure {
		target, config.NextProtos = "https://localhost", []string{"http/1.1"}
	}
	dial := dialling(lis)
	transport := &http.Transport{TLSClientConfig: config, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, "") }}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Post(target+"/grpc.testing.TestService/UnaryCall", "application/json", strings.NewReader("{}"))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s, %v", resp.Status, err)
	}
	return nil
}

// A client that requires shared memory is told why it gets none.
func TestAWrappedListenerDeclinesSharedMemory(t *testing.T) {
	if len(networks()) == 0 {
		t.Skip("the system has no shared memory")
	}
	target := targetFor(t, "unix")
	lis, err := net.Listen("unix", strings.TrimPrefix(target, "unix:"))
	if err != nil {
		t.Fatal(err)
	}
	start(t, serve(t, echo{}), wrapping{lis})
	err = <-invoke(t.Context(), dial(t, strings.Replace(target, "unix:", "shm:", 1)))
	wantCode(t, err, codes.Unavailable)
	if err == nil || !strings.Contains(err.Error(), "not a unix socket itself") {
		t.Errorf("the error is %v", err)
	}
}

// A client uses credentials that call themselves insecure: over its paths, and to ordinary gRPC
// servers.
func TestCredentialsOfAClientAreUsedWhateverTheirName(t *testing.T) {
	needs.UnixSockets(t)
	var p peer.Peer
	var md metadata.MD
	ordinary := grpc.NewServer()
	testpb.RegisterTestServiceServer(ordinary, echo{})
	there := listenTCP(t)
	served := make(chan error, 1)
	go func() { served <- ordinary.Serve(there) }()
	defer func() {
		ordinary.Stop()
		<-served
	}()
	srv := serve(t, seen(&p, &md))
	targets := map[string]string{"fallback": "tcp:" + there.Addr().String(), "grpc": "grpc:" + there.Addr().String()}
	for _, network := range networks("unix", "tcp") {
		lis := listen(t, targetFor(t, network))
		start(t, srv, lis)
		targets[network] = lis.Target()
	}
	for _, name := range []string{"insecure", "mine"} {
		for network, target := range targets {
			creds := newChecking(name)
			opts := over(network, nearcall.WithTransportCredentials(creds))
			var server peer.Peer
			wantCode(t, <-invoke(t.Context(), dial(t, target, opts...), grpc.Peer(&server)), codes.OK)
			if _, ok := server.AuthInfo.(checked); !ok || creds.conn.Load() == nil {
				t.Errorf("%s, called %s: the AuthInfo is %#v, the handshake got %v", network, name, server.AuthInfo, creds.conn.Load())
			}
		}
	}
}
