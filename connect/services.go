package nearconnect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"reflect"
	"sync"

	"connectrpc.com/connect/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

// Services are services with gRPC's generated code, for [NewServer]. It is a
// [grpc.ServiceRegistrar], so generated RegisterXServer functions accept it. The zero value has no
// services.
type Services struct {
	all []service
}

type service struct {
	desc *grpc.ServiceDesc
	impl any
}

// RegisterService implements [grpc.ServiceRegistrar]. Generated code calls it. It panics if impl
// does not implement the service, or if the service is already registered.
func (s *Services) RegisterService(desc *grpc.ServiceDesc, impl any) {
	if impl != nil {
		if want := reflect.TypeOf(desc.HandlerType).Elem(); !reflect.TypeOf(impl).Implements(want) {
			panic(fmt.Sprintf("nearconnect: RegisterService of %s: the handler of type %T does not satisfy %v; implement its missing methods", desc.ServiceName, impl, want))
		}
	}
	for _, other := range s.all {
		if other.desc.ServiceName == desc.ServiceName {
			panic(fmt.Sprintf("nearconnect: RegisterService found a duplicate: %s is registered already", desc.ServiceName))
		}
	}
	s.all = append(s.all, service{desc, impl})
}

// NewServer returns a *connect.Server with services, which may have more methods registered, and be
// mounted over HTTP by connecthttp or be passed to [Register]. Its handlers find what gRPC's
// handlers find in their context: metadata, the method's name and the caller's address. The
// interceptors and stats handlers of a gRPC server do not apply.
func NewServer(services *Services, interceptors ...connect.ServerInterceptor) *connect.Server {
	server := connect.NewServer(interceptors...)
	for _, svc := range services.all {
		for i := range svc.desc.Methods {
			m := &svc.desc.Methods[i]
			server.Register(connect.Method{Spec: specOf(svc.desc, m.MethodName, connect.StreamTypeUnary), Handler: handler(func(s *grpcStream) error {
				reply, err := m.Handler(svc.impl, s.ctx, s.RecvMsg, nil)
				if err != nil {
					return err
				}
				return s.SendMsg(reply)
			})})
		}
		for i := range svc.desc.Streams {
			d := &svc.desc.Streams[i]
			kind := connect.StreamTypeUnary
			if d.ClientStreams {
				kind |= connect.StreamTypeClient
			}
			if d.ServerStreams {
				kind |= connect.StreamTypeServer
			}
			server.Register(connect.Method{Spec: specOf(svc.desc, d.StreamName, kind), Handler: handler(func(s *grpcStream) error { return d.Handler(svc.impl, s) })})
		}
	}
	return server
}

// specOf returns the Spec of a method. Its schema and its idempotency level are those of the
// registered descriptor, if there is one.
func specOf(desc *grpc.ServiceDesc, method string, kind connect.StreamType) connect.Spec {
	spec := connect.Spec{Procedure: "/" + desc.ServiceName + "/" + method, StreamType: kind}
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(desc.ServiceName + "." + method))
	if err != nil {
		return spec
	}
	if m, ok := d.(protoreflect.MethodDescriptor); ok {
		spec.Schema = m
		if options, ok := m.Options().(*descriptorpb.MethodOptions); ok {
			spec.IdempotencyLevel = connect.IdempotencyLevel(options.GetIdempotencyLevel())
		}
	}
	return spec
}

// handler returns the handler of a method, which handle serves.
func handler(handle func(*grpcStream) error) connect.ServerFunc {
	return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
		s, err := newGRPCStream(ctx, spec, stream)
		if err != nil {
			return err
		}
		return s.end(handle(s))
	}
}

// A grpcStream is the [grpc.ServerStream] of a call that a *connect.Server dispatches. A wrapper of
// it is the [grpc.ServerTransportStream].
type grpcStream struct {
	ctx       context.Context
	procedure string
	stream    connect.ServerStream

	mu         sync.Mutex
	info       *connect.CallInfo
	headerSent bool
	over       bool // the handler has returned
}

func newGRPCStream(ctx context.Context, spec connect.Spec, stream connect.ServerStream) (*grpcStream, error) {
	info, ok := connect.CallInfoForServerContext(ctx)
	if !ok {
		return nil, connect.NewError(connect.CodeInternal, "the call did not come through connect.Server.Call")
	}
	md, err := toMetadata(info.RequestHeader())
	if err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err.Error())
	}
	s := &grpcStream{procedure: spec.Procedure, stream: stream, info: info}
	ctx = metadata.NewIncomingContext(ctx, md)
	if _, ok := peer.FromContext(ctx); !ok {
		ctx = peer.NewContext(ctx, &peer.Peer{Addr: address(info.PeerAddr)})
	}
	s.ctx = grpc.NewContextWithServerTransportStream(ctx, transportStream{s})
	return s, nil
}

// An address is the address of a peer as text: Connect knows no more of it. It implements
// [net.Addr].
type address string

func (a address) Network() string {
	if _, err := netip.ParseAddrPort(string(a)); err == nil {
		return "tcp"
	}
	return "connect"
}

func (a address) String() string { return string(a) }

// end ends the call with err, the error of gRPC's handler, and returns Connect's.
func (s *grpcStream) end(err error) error {
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); !ok && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		err = status.FromContextError(err).Err()
	}
	return fromStatus(err)
}

func (s *grpcStream) Context() context.Context { return s.ctx }

var errHeaderSent = status.Error(codes.Internal, "transport: SendHeader called multiple times")

func (s *grpcStream) SetHeader(md metadata.MD) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.setHeaderLocked(md)
}

func (s *grpcStream) setHeaderLocked(md metadata.MD) error {
	if md.Len() == 0 {
		return nil
	}
	if s.headerSent || s.over {
		return errHeaderSent
	}
	addMetadata(s.info.ResponseHeader(), md)
	return nil
}

func (s *grpcStream) SendHeader(md metadata.MD) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.headerSent || s.over {
		return errHeaderSent
	}
	if err := s.setHeaderLocked(md); err != nil {
		return err
	}
	s.headerSent = true
	return grpcError(s.stream.SendHeaders())
}

func (s *grpcStream) SetTrailer(md metadata.MD) { _ = s.setTrailer(md) }

func (s *grpcStream) setTrailer(md metadata.MD) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return errHeaderSent
	}
	addMetadata(s.info.ResponseTrailer(), md)
	return nil
}

// addMetadata adds md to h.
func addMetadata(h *connect.Header, md metadata.MD) {
	var more connect.Header
	fromMetadata(&more, md)
	for key, values := range more.All() {
		for _, v := range values {
			h.Add(key, v)
		}
	}
}

func (s *grpcStream) SendMsg(msg any) error {
	s.mu.Lock()
	s.headerSent = true
	s.mu.Unlock()
	return grpcError(s.stream.Send(msg))
}

func (s *grpcStream) RecvMsg(msg any) error { return grpcError(s.stream.Receive(msg)) }

// grpcError returns an error of a stream of Connect as gRPC's.
func grpcError(err error) error {
	switch e, ok := errors.AsType[*connect.Error](err); {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF):
		return io.EOF
	case ok && e != nil:
		return toStatus(e)
	default:
		return status.Error(codes.Code(codeOf(err)), err.Error())
	}
}

// A transportStream is the [grpc.ServerTransportStream] of a grpcStream, for grpc.SetHeader and the
// like.
type transportStream struct{ *grpcStream }

func (t transportStream) Method() string                  { return t.procedure }
func (t transportStream) SetTrailer(md metadata.MD) error { return t.setTrailer(md) }
