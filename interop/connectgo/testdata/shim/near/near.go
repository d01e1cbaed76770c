// Package near serves a *connect.Server over a path of nearcall, for a test.
package near

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"

	"connectrpc.com/connect/v2"
	"github.com/nearcall/nearcall"
	nearconnect "github.com/nearcall/nearcall/connect"
	_ "github.com/nearcall/nearcall/quic"
	"google.golang.org/grpc"
)

// A TB is what near needs of a testing.TB.
type TB interface {
	Helper()
	Cleanup(func())
	Fatal(args ...any)
	Errorf(format string, args ...any)
}

// Say says that a test uses nearcall.
var Say = sync.OnceFunc(func() { fmt.Println("NEARCALL") })

// Serve serves server until the test ends, and returns a connection to it.
func Serve(t TB, server *connect.Server, opts ...nearcall.ServerOption) *nearcall.ClientConn {
	t.Helper()
	kind := os.Getenv("NEARCALL_TESTS_ON")
	var dial []nearcall.DialOption
	switch kind {
	case "unix":
		dial = append(dial, nearcall.WithDisableSharedMemory())
	case "quic":
		site := httptest.NewTLSServer(nil) // for its certificate
		opts = append(opts, nearcall.Creds(nearcall.NewTLS(&tls.Config{Certificates: site.TLS.Certificates})))
		dial = append(dial, nearcall.WithTransportCredentials(nearcall.NewTLS(site.Client().Transport.(*http.Transport).TLSClientConfig)))
		site.Close()
	}
	srv := nearcall.NewServer(append(opts, nearcall.UnknownServiceHandler(nearconnect.UnknownHandler(server)))...)
	nearconnect.Register(srv, server)
	t.Cleanup(srv.Stop)
	if kind == "inproc" {
		conn := srv.Client()
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	target := map[string]string{"tcp": "tcp:127.0.0.1:0", "ws": "ws://127.0.0.1:0/calls", "quic": "quic:127.0.0.1:0"}[kind]
	if target == "" {
		dir, err := os.MkdirTemp("", "near")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		target = kind + ":" + filepath.Join(dir, "s")
	}
	lis, err := nearcall.Listen(target)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-served; err != nil && err != grpc.ErrServerStopped {
			t.Errorf("Serve: %v", err)
		}
	})
	conn, err := nearcall.NewClient(lis.Target(), dial...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}
