// Package near serves a *connect.Server over a path of nearcall, for a test.
package near

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"connectrpc.com/connect/v2"
	"github.com/nearcall/nearcall"
	nearconnect "github.com/nearcall/nearcall/connect"
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
	srv := nearcall.NewServer(append(opts, nearcall.UnknownServiceHandler(nearconnect.UnknownHandler(server)))...)
	nearconnect.Register(srv, server)
	t.Cleanup(srv.Stop)
	kind := os.Getenv("NEARCALL_KIND")
	if kind == "inproc" {
		conn := srv.Client()
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	target := map[string]string{"tcp": "tcp:127.0.0.1:0", "ws": "ws://127.0.0.1:0/calls"}[kind]
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
	var dial []nearcall.DialOption
	if kind == "unix" {
		dial = append(dial, nearcall.WithMaxSharedMemory(0))
	}
	conn, err := nearcall.NewClient(lis.Target(), dial...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}
