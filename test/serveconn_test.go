package test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/peer"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/leak"
)

// A pair is a connection that no listener has accepted, by both its ends.
type pair func(t *testing.T) (client, server net.Conn)

// pairs has the kinds of pairs, by the network of the server's peer. The system may add some.
var pairs = map[string]pair{
	"pipe": func(*testing.T) (client, server net.Conn) { return net.Pipe() },
	"tcp": func(t *testing.T) (client, server net.Conn) {
		lis := listenTCP(t)
		defer lis.Close()
		client, err := net.Dial("tcp", lis.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if server, err = lis.Accept(); err != nil {
			t.Fatal(err)
		}
		return client, server
	},
}

// serveConn makes srv serve one end of a pair, and returns what ServeConn will return.
func serveConn(srv *nearcall.Server, conn net.Conn) <-chan error {
	served := make(chan error, 1)
	go func() { served <- srv.ServeConn(conn) }()
	return served
}

// once returns a dial function that returns conn, once.
func once(conn net.Conn) func(context.Context, string) (net.Conn, error) {
	return func(context.Context, string) (net.Conn, error) {
		c := conn
		if conn = nil; c == nil {
			return nil, errors.New("the connection was used")
		}
		return c, nil
	}
}

// ServeConn serves every kind of client that a listener takes, over every kind of connection, and
// returns nil when the client has closed it.
func TestServeConnTakesEveryKindOfClient(t *testing.T) {
	clients := map[string]func(t *testing.T, conn net.Conn, network string) error{
		"nearcall": func(t *testing.T, conn net.Conn, network string) error {
			target := "tcp:localhost:1"
			if network == "shm" {
				target = "unix:the-other-end"
			}
			cc, err := nearcall.NewClient(target, nearcall.WithContextDialer(once(conn)))
			if err != nil {
				return err
			}
			defer cc.Close()
			return callAll(t.Context(), testpb.NewTestServiceClient(cc))
		},
		"websocket": func(t *testing.T, conn net.Conn, _ string) error {
			cc, err := nearcall.NewClient("ws://localhost/", nearcall.WithContextDialer(once(conn)))
			if err != nil {
				return err
			}
			defer cc.Close()
			return callAll(t.Context(), testpb.NewTestServiceClient(cc))
		},
		"grpc-go": func(t *testing.T, conn net.Conn, _ string) error {
			cc, err := grpc.NewClient("passthrough:///it", grpc.WithTransportCredentials(insecureCreds()), grpc.WithContextDialer(once(conn)))
			if err != nil {
				return err
			}
			defer cc.Close()
			return callAll(t.Context(), testpb.NewTestServiceClient(cc))
		},
		"HTTP/1.1": func(_ *testing.T, conn net.Conn, _ string) error {
			dial := once(conn)
			transport := &http.Transport{DialContext: func(ctx context.Context, _, address string) (net.Conn, error) { return dial(ctx, address) }}
			defer transport.CloseIdleConnections()
			resp, err := (&http.Client{Transport: transport}).Post("http://localhost/grpc.testing.TestService/UnaryCall", "application/json", strings.NewReader("{}"))
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if body, err := io.ReadAll(resp.Body); string(body) != "{}" || err != nil {
				return errors.Join(errors.New("the answer is "+string(body)), err)
			}
			return nil
		},
	}
	for network, pair := range pairs {
		for name, call := range clients {
			t.Run(network+"/"+name, func(t *testing.T) {
				hold(t)
				var p peer.Peer
				srv := serve(t, echo{}, nearcall.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
					got, _ := peer.FromContext(ctx)
					p = *got
					return handler(ctx, req)
				}))
				near, far := pair(t)
				served := serveConn(srv, far)
				if err := call(t, near, network); err != nil {
					t.Error(err)
				}
				if err := <-served; err != nil {
					t.Errorf("ServeConn: %v", err)
				}
				want := network
				if network == "shm" && name != "nearcall" {
					want = "unix"
				}
				if got := p.Addr.Network(); got != want {
					t.Errorf("the call came over %s, want %s", got, want)
				}
				// The system names this process as the maker of a socketpair, not the client.
				security := "insecure"
				if network == "shm" {
					security = "local"
				}
				if _, names := p.AuthInfo.(nearcall.UnixAuthInfo); names || p.AuthInfo.AuthType() != security {
					t.Errorf("the handler sees %#v, want one that is %s and names no process", p.AuthInfo, security)
				}
				if got := p.LocalAddr.Network(); got != want {
					t.Errorf("the call came to %s, want %s", got, want)
				}
			})
		}
	}
}

// ServeConn's connections have the server's credentials.
func TestServeConnSecuresTheConnection(t *testing.T) {
	hold(t)
	certs := newCertificates(t)
	srv := serve(t, echo{}, nearcall.Creds(credentials.NewTLS(certs.server(nil))))
	near, far := net.Pipe()
	served := serveConn(srv, far)
	cc, err := nearcall.NewClient("tcp:localhost:1", nearcall.WithContextDialer(once(near)), nearcall.WithTransportCredentials(credentials.NewTLS(certs.client(nil))))
	if err != nil {
		t.Fatal(err)
	}
	var p peer.Peer
	if _, err := testpb.NewTestServiceClient(cc).UnaryCall(t.Context(), &testpb.SimpleRequest{}, grpc.Peer(&p)); err != nil {
		t.Error(err)
	}
	if _, ok := p.AuthInfo.(credentials.TLSInfo); !ok {
		t.Errorf("the client's peer has %T", p.AuthInfo)
	}
	_ = cc.Close()
	if err := <-served; err != nil {
		t.Errorf("ServeConn: %v", err)
	}

	near, far = net.Pipe()
	served = serveConn(srv, far)
	go func() { _, _ = io.Copy(io.Discard, near) }()
	_, _ = io.WriteString(near, "GET / HTTP/1.1\r\n\r\n")
	if err := <-served; err == nil || !strings.Contains(err.Error(), "TLS") {
		t.Errorf("ServeConn of a client without TLS: %v", err)
	}
	_ = near.Close()
}

// Whatever ServeConn returns, it has closed the connection.
func TestServeConnSaysWhyItDoesNotServe(t *testing.T) {
	closed := func(t *testing.T, conn net.Conn) {
		t.Helper()
		leak.Within(t, 10*time.Second, "the connection is closed", func() { _, _ = io.Copy(io.Discard, conn) })
	}
	t.Run("another protocol", func(t *testing.T) {
		near, far := net.Pipe()
		served := serveConn(serve(t, echo{}), far)
		_, _ = io.WriteString(near, "220 mail.example ESMTP\r\n")
		closed(t, near)
		if err := <-served; err == nil || !strings.Contains(err.Error(), "protocol") {
			t.Errorf("ServeConn: %v", err)
		}
	})
	t.Run("no HELLO", func(t *testing.T) {
		near, far := pairs["tcp"](t)
		defer near.Close()
		served := serveConn(serve(t, echo{}), far)
		_, _ = io.WriteString(near, "nearcall/1\n")
		_ = near.(*net.TCPConn).CloseWrite()
		closed(t, near)
		if err := <-served; err == nil {
			t.Error("ServeConn: no error")
		}
	})
	t.Run("stopped before", func(t *testing.T) {
		srv := serve(t, echo{})
		srv.Stop()
		near, far := net.Pipe()
		if err := srv.ServeConn(far); err != grpc.ErrServerStopped {
			t.Errorf("ServeConn: %v", err)
		}
		closed(t, near)
	})
	t.Run("stopped in its handshake", func(t *testing.T) {
		near, far := net.Pipe()
		srv := serve(t, echo{})
		served := serveConn(srv, far)
		_, _ = io.WriteString(near, "n") // returns when the server reads
		srv.Stop()
		if err := <-served; err != grpc.ErrServerStopped {
			t.Errorf("ServeConn: %v", err)
		}
		closed(t, near)
	})
	t.Run("none", func(t *testing.T) {
		if err := serve(t, echo{}).ServeConn(nil); err == nil {
			t.Error("ServeConn(nil): no error")
		}
	})
}

// A tappedTCP knows whether the server has ended its writes.
type tappedTCP struct {
	*net.TCPConn
	ended atomic.Bool
}

func (c *tappedTCP) CloseWrite() error {
	c.ended.Store(true)
	return c.TCPConn.CloseWrite()
}

// A client that is refused reads the whole answer: the server ends its writes before it closes the
// connection.
func TestServeConnEndsItsWritesFirst(t *testing.T) {
	for name, c := range map[string]struct {
		takes  nearcall.ClientKind
		fields int
	}{
		"a client that the server does not take": {0, 1},
		"a header with too many fields":          {nearcall.WebClients, 1 << 17},
	} {
		t.Run(name, func(t *testing.T) {
			near, far := pairs["tcp"](t)
			defer near.Close()
			conn := &tappedTCP{TCPConn: far.(*net.TCPConn)}
			served := serveConn(serve(t, echo{}, nearcall.OtherClients(c.takes)), conn)
			go io.WriteString(near, "GET / HTTP/1.1\r\nHost: nearcall\r\n"+strings.Repeat("a: b\r\n", c.fields)+"\r\n")
			answer, err := http.ReadResponse(bufio.NewReader(near), nil)
			if err != nil {
				t.Fatal(err)
			}
			if answer.StatusCode < 400 {
				t.Errorf("the answer is %s", answer.Status)
			}
			_ = near.Close()
			leak.Within(t, 10*time.Second, "ServeConn returns", func() { <-served })
			if !conn.ended.Load() {
				t.Error("the connection was closed with its writes open")
			}
		})
	}
}
