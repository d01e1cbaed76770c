package test

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

// A program that closes the connections that its dialer has returned ends their calls, by whatever path
// they could travel.
func TestClosingADialersConnectionsEndsTheirCalls(t *testing.T) {
	certs := newCertificates(t)
	secure := nearcall.Creds(nearcall.NewTLS(certs.server(nil)))
	plain := nearcall.WithTransportCredentials(insecureCreds())
	for name, c := range map[string]struct {
		listen, target string // of the server and of the client
		server         []nearcall.ServerOption
		client         []nearcall.DialOption
	}{
		"tcp target":                     {"tcp:127.0.0.1:0", "tcp:any:1", nil, []nearcall.DialOption{plain}},
		"target of grpc-go":              {"tcp:127.0.0.1:0", "passthrough:///any", nil, []nearcall.DialOption{plain}},
		"target of grpc-go, TLS":         {"tcp:127.0.0.1:0", "passthrough:///localhost", []nearcall.ServerOption{secure}, []nearcall.DialOption{nearcall.WithTransportCredentials(credentials.NewTLS(certs.client(nil)))}},
		"target of grpc-go, own TLS":     {"tcp:127.0.0.1:0", "passthrough:///localhost", []nearcall.ServerOption{secure}, []nearcall.DialOption{nearcall.WithTransportCredentials(nearcall.NewTLS(certs.client(nil)))}},
		"target of grpc-go, unix socket": {"unix:", "passthrough:///any", nil, []nearcall.DialOption{plain}},
		"unix target":                    {"unix:", "unix:any", nil, nil},
		"unix target, without memory":    {"unix:", "unix:any", nil, []nearcall.DialOption{nearcall.WithDisableSharedMemory()}},
		"WebSocket":                      {"ws://127.0.0.1:0/", "ws://127.0.0.1:1/", nil, []nearcall.DialOption{plain}},
	} {
		t.Run(name, func(t *testing.T) {
			hold(t)
			if c.listen == "unix:" {
				needs.UnixSockets(t)
				c.listen += filepath.Join(t.TempDir(), "s")
			}
			lis := listen(t, c.listen)
			start(t, serve(t, echo{}, c.server...), lis)
			var mu sync.Mutex
			var conns []net.Conn
			client := dial(t, c.target, append(c.client, nearcall.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				a := lis.Addr()
				conn, err := new(net.Dialer).DialContext(ctx, strings.Replace(a.Network(), "ws", "tcp", 1), a.String())
				if err == nil {
					mu.Lock()
					conns = append(conns, conn)
					mu.Unlock()
				}
				return conn, err
			}))...)
			stream, err := client.FullDuplexCall(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.Send(&testpb.StreamingOutputCallRequest{}); err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
			mu.Lock()
			for _, conn := range conns {
				_ = conn.Close()
			}
			mu.Unlock()
			_, err = stream.Recv()
			wantCode(t, err, codes.Unavailable)
		})
	}
}
