// Package schema gets the descriptors of a server's services and messages from the server, by
// gRPC's server reflection.
package schema

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	rpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// Services is the prefix of the names of the reflection services.
const Services = "grpc.reflection."

// versions are the reflection services in the order in which they are tried. Their messages
// are the same on the wire, so the types of v1 serve for both.
var versions = []string{"v1", "v1alpha"}

// Errors for names that the server does not know wrap ErrNotFound.
var ErrNotFound = errors.New("the server does not know the name")

// A Server has the descriptors of a server. It asks for them when they are needed, and keeps
// them. All methods are safe for concurrent use, and return status errors if the server cannot be
// asked.
type Server struct {
	ctx    context.Context
	cancel context.CancelFunc
	conn   grpc.ClientConnInterface
	opts   []grpc.CallOption

	mu      sync.Mutex // also held while the server is asked
	version int        // index into versions
	stream  grpc.ClientStream
	protos  map[string]*descriptorpb.FileDescriptorProto // by path; nil for files that the server does not have
	linking []string                                     // files whose imports are being linked, for cycles
	files   *protoregistry.Files
	types   *dynamicpb.Types
	unknown map[string]bool // what the server was asked for and does not know
}

// New returns the Server at the other end of conn. Its calls end when ctx is done or Close is
// called.
func New(ctx context.Context, conn grpc.ClientConnInterface, opts ...grpc.CallOption) *Server {
	s := &Server{
		conn: conn, opts: opts, files: new(protoregistry.Files),
		protos: make(map[string]*descriptorpb.FileDescriptorProto), unknown: make(map[string]bool),
	}
	s.ctx, s.cancel = context.WithCancel(ctx)
	s.types = dynamicpb.NewTypes(s.files)
	return s
}

// Close ends the calls to the server.
func (s *Server) Close() { s.cancel() }

// Services returns the names of the server's services, in order.
func (s *Server) Services() ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	reply, err := s.ask(&rpb.ServerReflectionRequest{MessageRequest: &rpb.ServerReflectionRequest_ListServices{ListServices: "*"}})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, each := range reply.GetListServicesResponse().GetService() {
		names = append(names, each.GetName())
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Find returns the descriptor with a name in the server's files: of a service, method, message,
// field and so on.
func (s *Server) Find(name protoreflect.FullName) (protoreflect.Descriptor, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.find(name)
}

func (s *Server) find(name protoreflect.FullName) (protoreflect.Descriptor, error) {
	if d, err := s.files.FindDescriptorByName(name); err == nil {
		return d, nil
	}
	if !name.IsValid() {
		return nil, fmt.Errorf("%w: %q is not a name", ErrNotFound, name)
	}
	err := s.fetch(string(name), &rpb.ServerReflectionRequest{
		MessageRequest: &rpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: string(name)},
	})
	if err != nil {
		return nil, err
	}
	d, err := s.files.FindDescriptorByName(name)
	if err != nil {
		return nil, fmt.Errorf("%w: %s, and sends files without it", ErrNotFound, name)
	}
	return d, nil
}

// File returns a file of the server's, by the path with which others import it.
func (s *Server) File(path string) (protoreflect.FileDescriptor, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, err := s.link(path)
	if err == nil && d == nil {
		err = fmt.Errorf("%w: %s", ErrNotFound, path)
	}
	return d, err
}

// fetch asks for files and links them. what identifies the request: fetch does not repeat one
// that has failed with ErrNotFound.
func (s *Server) fetch(what string, req *rpb.ServerReflectionRequest) error {
	if s.unknown[what] {
		return fmt.Errorf("%w: %s", ErrNotFound, what)
	}
	reply, err := s.ask(req)
	if err == nil {
		return s.add(reply.GetFileDescriptorResponse().GetFileDescriptorProto())
	}
	if errors.Is(err, ErrNotFound) {
		s.unknown[what] = true
		return fmt.Errorf("%w: %s", ErrNotFound, what)
	}
	return err
}

// ask sends a request to the server and returns the reply.
func (s *Server) ask(req *rpb.ServerReflectionRequest) (*rpb.ServerReflectionResponse, error) {
	reply, err := s.exchange(req)
	for status.Code(err) == codes.Unimplemented && s.version+1 < len(versions) {
		first := err
		s.version++
		if reply, err = s.exchange(req); status.Code(err) == codes.Unimplemented {
			s.version, err = 0, first
			break
		}
	}
	if err != nil {
		return nil, explain(err)
	}
	if failed := reply.GetErrorResponse(); failed != nil {
		if codes.Code(failed.GetErrorCode()) == codes.NotFound {
			return nil, ErrNotFound
		}
		return nil, status.Error(codes.Code(failed.GetErrorCode()), "reflection: "+failed.GetErrorMessage())
	}
	return reply, nil
}

// exchange asks over the stream that is open, or a new one.
func (s *Server) exchange(req *rpb.ServerReflectionRequest) (*rpb.ServerReflectionResponse, error) {
	fresh := s.stream == nil
	if fresh {
		method := "/" + Services + versions[s.version] + ".ServerReflection/ServerReflectionInfo"
		stream, err := s.conn.NewStream(s.ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method, s.opts...)
		if err != nil {
			return nil, err
		}
		s.stream = stream
	}
	reply := new(rpb.ServerReflectionResponse)
	err := s.stream.SendMsg(req)
	if err == nil || errors.Is(err, io.EOF) { // then RecvMsg returns the reason
		err = s.stream.RecvMsg(reply)
	}
	if err == nil {
		return reply, nil
	}
	s.stream = nil // the error has ended it
	if errors.Is(err, io.EOF) {
		if !fresh { // the server ended it after its last answer
			return s.exchange(req)
		}
		err = status.Error(codes.Internal, "the server's reflection ended without an answer")
	}
	return nil, err
}

// explain adds what to do to the error of a server without reflection. An error of nearcall
// says so itself.
func explain(err error) error {
	st := status.Convert(err)
	if st.Code() != codes.Unimplemented || strings.Contains(st.Message(), "nearcall") {
		return err
	}
	return status.Errorf(codes.Unimplemented, "the server has no reflection (%s); its program can add it with "+
		"reflection.Register(srv), of package google.golang.org/grpc/reflection", st.Message())
}
