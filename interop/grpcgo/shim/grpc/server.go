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

// A Server is a server of grpc-go or of nearcall: one of grpc and near is nil.
type Server struct {
	grpc *g.Server
	near *nearcall.Server
	loop *loop.Loop // handlers run on it if it is not nil
}

// labelsMethods reports whether a test has configured grpc-go to label server goroutines
// with the method. The setting is internal to grpc-go; internals.go sets labelsMethods in
// the copy.
var labelsMethods func() bool

// NewServer returns a server of the kind near.On.
func NewServer(opts ...ServerOption) *Server {
	o := mergeServer(opts)
	if near.On.ServerOfGRPC() {
		return &Server{grpc: g.NewServer(o.grpc...)}
	}
	if o.missing != "" && near.On != near.Ordinary {
		near.Unsupported("server option " + o.missing)
	}
	if labelsMethods != nil && labelsMethods() {
		os.Setenv("GRPC_GO_SERVER_GOROUTINE_LABELS", "grpc.method=true")
	}
	s := &Server{}
	switch near.On {
	case near.Unix:
		o.near = append(o.near, nearcall.DisableSharedMemory())
	case near.Inline:
		o.near = append(o.near, nearcall.HandlerPlacement(nearcall.Inline))
	case near.Shared:
		o.near = append(o.near, nearcall.ImmutableMessages())
	case near.Loop:
		s.loop = loop.New()
	}
	s.near = nearcall.NewServer(o.near...)
	return s
}

// RegisterService registers impl, on the loop if there is one.
func (s *Server) RegisterService(desc *g.ServiceDesc, impl any) {
	switch {
	case s.grpc != nil:
		s.grpc.RegisterService(desc, impl)
	case s.loop != nil:
		s.near.OnLoop(s.loop).RegisterService(desc, impl)
	default:
		s.near.RegisterService(desc, impl)
	}
}

// GetServiceInfo returns the registered services.
func (s *Server) GetServiceInfo() map[string]g.ServiceInfo {
	if s.grpc != nil {
		return s.grpc.GetServiceInfo()
	}
	return s.near.GetServiceInfo()
}

// Serve serves lis, or the listener that package near listens on instead.
func (s *Server) Serve(lis net.Listener) error {
	if s.grpc != nil {
		return s.grpc.Serve(lis)
	}
	return s.near.Serve(near.Unwrap(lis))
}

// Stop stops the server, and closes its loop if there is one.
func (s *Server) Stop() {
	if s.grpc != nil {
		s.grpc.Stop()
		return
	}
	s.near.Stop()
	if s.loop != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = s.loop.Close(ctx)
	}
}

// GracefulStop stops the server gracefully.
func (s *Server) GracefulStop() {
	if s.grpc != nil {
		s.grpc.GracefulStop()
		return
	}
	s.near.GracefulStop()
}

// ServeHTTP is supported only by grpc-go.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.grpc == nil {
		near.Unsupported("Server.ServeHTTP")
	}
	s.grpc.ServeHTTP(w, r)
}
