package grpc

import (
	"context"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/interop/grpcgo/shim/near"
	"github.com/nearcall/nearcall/loop"
	g "google.golang.org/grpc"
)

// A Server is a server of grpc-go or of nearcall.
type Server struct {
	served
	services g.ServiceRegistrar // the server, or its services on loop
	loop     *loop.Loop         // handlers run on it if it is not nil
}

type served interface {
	g.ServiceRegistrar
	GetServiceInfo() map[string]g.ServiceInfo
	Serve(net.Listener) error
	Stop()
	GracefulStop()
}

// labelsMethods reports whether a test has configured grpc-go to label server goroutines
// with the method. The setting is internal to grpc-go; internals.go sets labelsMethods in
// the copy.
var labelsMethods func() bool

// NewServer returns a server of the kind near.On.
func NewServer(opts ...ServerOption) *Server {
	o := mergeServer(opts)
	if near.On.ServerOfGRPC() {
		s := g.NewServer(o.grpc...)
		return &Server{served: s, services: s}
	}
	if o.missing != "" && near.On != near.Ordinary {
		near.Unsupported("server option " + o.missing)
	}
	if labelsMethods != nil && labelsMethods() {
		os.Setenv("GRPC_GO_SERVER_GOROUTINE_LABELS", "grpc.method=true")
	}
	var handlers *loop.Loop
	switch near.On {
	case near.Unix:
		o.near = append(o.near, nearcall.DisableSharedMemory())
	case near.Inline:
		o.near = append(o.near, nearcall.HandlerPlacement(nearcall.Inline))
	case near.Shared:
		o.near = append(o.near, nearcall.ImmutableMessages())
	case near.Loop:
		handlers = loop.New()
	}
	s := nearcall.NewServer(o.near...)
	if handlers != nil {
		return &Server{s, s.OnLoop(handlers), handlers}
	}
	return &Server{served: s, services: s}
}

// RegisterService registers impl, on the loop if there is one.
func (s *Server) RegisterService(desc *g.ServiceDesc, impl any) {
	s.services.RegisterService(desc, impl)
}

// Serve serves lis, or the listener that package near listens on instead.
func (s *Server) Serve(lis net.Listener) error { return s.served.Serve(near.Unwrap(lis)) }

// Stop stops the server, and closes its loop if there is one.
func (s *Server) Stop() {
	s.served.Stop()
	if s.loop != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = s.loop.Close(ctx)
	}
}

// ServeHTTP is supported only by grpc-go.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	server, ok := s.served.(*g.Server)
	if !ok {
		near.Unsupported("Server.ServeHTTP")
	}
	server.ServeHTTP(w, r)
}
