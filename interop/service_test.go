package interop

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	pb "google.golang.org/grpc/interop/grpc_testing"
)

// Names of TestService's methods.
const (
	emptyCall  = "/grpc.testing.TestService/EmptyCall"
	unaryCall  = "/grpc.testing.TestService/UnaryCall"
	outputCall = "/grpc.testing.TestService/StreamingOutputCall"
	inputCall  = "/grpc.testing.TestService/StreamingInputCall"
	duplexCall = "/grpc.testing.TestService/FullDuplexCall"
)

var (
	unaryDesc  = &grpc.StreamDesc{}
	serverDesc = &grpc.StreamDesc{ServerStreams: true}
	clientDesc = &grpc.StreamDesc{ClientStreams: true}
	bidiDesc   = &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
)

type (
	outputServer = grpc.ServerStreamingServer[pb.StreamingOutputCallResponse]
	inputServer  = grpc.ClientStreamingServer[pb.StreamingInputCallRequest, pb.StreamingInputCallResponse]
	duplexServer = grpc.BidiStreamingServer[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse]
)

// Service is TestService with the handlers that a case sets. The others are Unimplemented.
type Service struct {
	pb.UnimplementedTestServiceServer
	c *C

	Empty  func(context.Context, *pb.Empty) (*pb.Empty, error)
	Unary  func(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error)
	Output func(*pb.StreamingOutputCallRequest, outputServer) error
	Input  func(inputServer) error
	Duplex func(duplexServer) error
}

func (s *Service) EmptyCall(ctx context.Context, m *pb.Empty) (*pb.Empty, error) {
	defer s.c.enter()()
	if s.Empty == nil {
		return s.UnimplementedTestServiceServer.EmptyCall(ctx, m)
	}
	return s.Empty(ctx, m)
}

func (s *Service) UnaryCall(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	defer s.c.enter()()
	if s.Unary == nil {
		return s.UnimplementedTestServiceServer.UnaryCall(ctx, m)
	}
	return s.Unary(ctx, m)
}

func (s *Service) StreamingOutputCall(m *pb.StreamingOutputCallRequest, ss outputServer) error {
	defer s.c.enter()()
	if s.Output == nil {
		return s.UnimplementedTestServiceServer.StreamingOutputCall(m, ss)
	}
	return s.Output(m, ss)
}

func (s *Service) StreamingInputCall(ss inputServer) error {
	defer s.c.enter()()
	if s.Input == nil {
		return s.UnimplementedTestServiceServer.StreamingInputCall(ss)
	}
	return s.Input(ss)
}

func (s *Service) FullDuplexCall(ss duplexServer) error {
	defer s.c.enter()()
	if s.Duplex == nil {
		return s.UnimplementedTestServiceServer.FullDuplexCall(ss)
	}
	return s.Duplex(ss)
}

// Raw is a service described by hand, for what generated code cannot do.
type Raw struct {
	c    *C
	desc grpc.ServiceDesc
}

func (c *C) Raw(name string) *Raw {
	return &Raw{c: c, desc: grpc.ServiceDesc{ServiceName: name, HandlerType: (*any)(nil)}}
}

// Unary adds a unary method. Its handler calls dec to receive the request.
func (r *Raw) Unary(name string, h func(ctx context.Context, dec func(any) error) (any, error)) *Raw {
	r.desc.Methods = append(r.desc.Methods, grpc.MethodDesc{MethodName: name,
		Handler: func(_ any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			defer r.c.enter()()
			return h(ctx, dec)
		}})
	return r
}

// Stream adds a streaming method of desc's kind.
func (r *Raw) Stream(name string, desc *grpc.StreamDesc, h func(grpc.ServerStream) error) *Raw {
	r.desc.Streams = append(r.desc.Streams, grpc.StreamDesc{StreamName: name,
		ServerStreams: desc.ServerStreams, ClientStreams: desc.ClientStreams,
		Handler: func(_ any, ss grpc.ServerStream) error {
			defer r.c.enter()()
			return h(ss)
		}})
	return r
}

func (r *Raw) Register(s grpc.ServiceRegistrar) { s.RegisterService(&r.desc, struct{}{}) }

// echo answers a unary call with its payload.
func echo(_ context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	return &pb.SimpleResponse{Payload: m.GetPayload()}, nil
}

func payload(format string, args ...any) *pb.Payload {
	return &pb.Payload{Body: []byte(fmt.Sprintf(format, args...))}
}

func request(text string) *pb.SimpleRequest { return &pb.SimpleRequest{Payload: payload("%s", text)} }
func reply(text string) *pb.SimpleResponse  { return &pb.SimpleResponse{Payload: payload("%s", text)} }
func out(text string) *pb.StreamingOutputCallResponse {
	return &pb.StreamingOutputCallResponse{Payload: payload("%s", text)}
}
func in(text string) *pb.StreamingOutputCallRequest {
	return &pb.StreamingOutputCallRequest{Payload: payload("%s", text)}
}
