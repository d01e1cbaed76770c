// Package memhttptest replaces Connect's package in its tests.
package memhttptest

import (
	"net/http"
	"sync"
	"testing"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/internal/memhttp"
	"connectrpc.com/connect/v2/internal/memhttp/memhttptest"
	"connectrpc.com/connect/v2/nearcallshim/near"
	"github.com/nearcall/nearcall"
)

// Mounted is a server that was mounted on a mux.
type Mounted struct {
	Server  *connect.Server
	Options []nearcall.ServerOption
}

var (
	mu      sync.Mutex
	Mounts  = map[any]*Mounted{}
	Clients = map[any]*nearcall.ClientConn{}
)

// Mount notes that server is mounted on mux.
func Mount(mux any, m *Mounted) {
	mu.Lock()
	defer mu.Unlock()
	if Mounts[mux] != nil {
		m = nil // there are several: leave them to HTTP
	}
	Mounts[mux] = m
}

// ConnOf returns the connection of a server's client, or nil.
func ConnOf(client any) *nearcall.ClientConn {
	mu.Lock()
	defer mu.Unlock()
	return Clients[client]
}

// NewServer starts a server of HTTP and, if handler is a mux with a *connect.Server, one of nearcall.
func NewServer(tb testing.TB, handler http.Handler, opts ...memhttp.Option) *memhttp.Server {
	tb.Helper()
	server := memhttptest.NewServer(tb, handler, opts...)
	mux, ok := handler.(*http.ServeMux)
	if !ok {
		return server
	}
	mu.Lock()
	m := Mounts[mux]
	mu.Unlock()
	if m == nil {
		return server
	}
	conn := near.Serve(tb, m.Server, m.Options...)
	mu.Lock()
	Clients[server.Client()] = conn
	mu.Unlock()
	return server
}
