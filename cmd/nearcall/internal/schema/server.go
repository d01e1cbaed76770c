// Package schema gets the descriptors of a server's services and messages from the server, by
// gRPC's server reflection, or from files.
package schema

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/jhump/protoreflect/v2/grpcreflect"
	"github.com/jhump/protoreflect/v2/protoresolve"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// A Server has the descriptors of a server. It asks for them when they are needed, and keeps
// them.
//
// All methods are safe for concurrent use. The error for what the server does not know is
// protoregistry.NotFound, and others are statuses.
type Server struct {
	Types protoresolve.TypeResolver // the types in google.protobuf.Any, and extensions

	client *grpcreflect.Client
	cancel context.CancelFunc

	mu      sync.Mutex      // also held while the server is asked
	unknown map[string]bool // what the server was asked for and does not know
	gaps    gaps
}

// New returns the Server at the other end of conn. Its calls end when ctx is done or Close is
// called.
func New(ctx context.Context, conn grpc.ClientConnInterface, opts ...grpc.CallOption) *Server {
	s := &Server{unknown: make(map[string]bool), gaps: newGaps()}
	ctx, s.cancel = context.WithCancel(ctx)
	s.client = grpcreflect.NewClientAuto(ctx, &bounded{conn, opts, maxAnswers}, grpcreflect.WithFallbackResolvers(&s.gaps, nil))
	s.Types = protoresolve.TypesFromResolver(s)
	return s
}

// Close ends the calls to the server.
func (s *Server) Close() {
	s.client.Reset() // or the client would close its stream when its memory is collected
	s.cancel()
}

// Services returns the names of the server's services, in order.
func (s *Server) Services() (names []string, err error) {
	all, err := s.client.ListServices()
	if err != nil {
		return nil, explain(err)
	}
	for _, name := range all {
		names = append(names, string(name))
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// FindFileByPath returns a file of the server's, by the path with which others import it.
func (s *Server) FindFileByPath(path string) (protoreflect.FileDescriptor, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.getLocked(path, func() (protoreflect.FileDescriptor, error) { return s.client.FileByFilename(path) })
}

// FindDescriptorByName returns what has a name in the server's files: a service, method, message,
// field and so on.
func (s *Server) FindDescriptorByName(name protoreflect.FullName) (protoreflect.Descriptor, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	file, err := s.declaringLocked(name)
	if err != nil {
		return nil, err
	}
	return protoresolve.FindDescriptorByNameInFile(file, name), nil
}

// FindExtensionByName returns the extension with a name.
func (s *Server) FindExtensionByName(name protoreflect.FullName) (protoreflect.ExtensionDescriptor, error) {
	d, err := s.FindDescriptorByName(name)
	x, ok := d.(protoreflect.ExtensionDescriptor)
	if err == nil && (!ok || !x.IsExtension()) {
		err = protoresolve.NewUnexpectedTypeError(protoresolve.DescriptorKindExtension, d, "")
	}
	return x, err
}

// FindExtensionByNumber returns the extension of a message with a number.
func (s *Server) FindExtensionByNumber(message protoreflect.FullName, number protoreflect.FieldNumber) (protoreflect.ExtensionDescriptor, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	file, err := s.getLocked(fmt.Sprintf("extension %d of %s", number, message), func() (protoreflect.FileDescriptor, error) {
		return s.client.FileContainingExtension(message, number)
	})
	if err != nil {
		return nil, err
	}
	return protoresolve.FindExtensionByNumberInFile(file, message, number), nil
}

// declaringLocked returns the file that declares name.
func (s *Server) declaringLocked(name protoreflect.FullName) (protoreflect.FileDescriptor, error) {
	if !name.IsValid() {
		return nil, protoregistry.NotFound
	}
	return s.getLocked(string(name), func() (protoreflect.FileDescriptor, error) { return s.client.FileContainingSymbol(name) })
}

// getLocked returns the file that the function ask gets from the server. what names the thing that
// is asked for. If files that the file needs are missing, getLocked asks again until each gap is
// filled.
func (s *Server) getLocked(what string, ask func() (protoreflect.FileDescriptor, error)) (protoreflect.FileDescriptor, error) {
	for !s.unknown[what] {
		s.gaps.asked, s.gaps.lacking = what, ""
		file, err := ask()
		if err == nil {
			return file, nil
		}
		if grpcreflect.IsElementNotFoundError(err) {
			s.unknown[what] = true
		} else if s.gaps.lacking == "" {
			return nil, explain(err)
		} else if err := s.fillLocked(s.gaps.lacking, err); err != nil {
			return nil, explain(err)
		}
	}
	return nil, protoregistry.NotFound
}

// explain returns the status for an error of the client. If the server has no reflection, explain
// adds what to do, unless the error comes from nearcall and says so itself.
func explain(err error) error {
	st, ok := status.FromError(err)
	if !ok {
		return status.Errorf(codes.Internal, "the server's reflection is not usable: %v", err)
	}
	if st.Code() != codes.Unimplemented || strings.Contains(st.Message(), "nearcall") {
		return err
	}
	return status.Errorf(codes.Unimplemented, "the server has no reflection (%s); its program can add it with "+
		"reflection.Register(srv), of package google.golang.org/grpc/reflection, and -proto and -protoset do without", st.Message())
}
