package main

import (
	"bytes"
	"context"
	"io"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
)

// service is what every rival runs. Handlers build each response anew, payload
// and bytes, as handlers of real services do. So some allocations are nobody's
// fault, and part of every rival's figure:
//
//   - A message with a nested payload is three: the message, the payload, its
//     bytes.
//   - A unary call has three such messages that nobody can do without: the
//     request as the handler gets it, the response that it builds, and the
//     reply as the caller gets it. That makes 9; the rival "direct-clone"
//     shows them. The generated stub adds a slice of call options: 10.
//   - A message of a server stream is two, what the handler builds and what
//     the caller gets: 6.
//   - A bidi echo is three again, since the caller sends one message over and
//     over: 9.
type service struct {
	testpb.UnimplementedTestServiceServer
	messages int
}

func fresh(like *testpb.Payload) *testpb.Payload {
	return &testpb.Payload{Body: bytes.Clone(like.GetBody())}
}

func (service) EmptyCall(context.Context, *testpb.Empty) (*testpb.Empty, error) {
	return new(testpb.Empty), nil
}

func (service) UnaryCall(_ context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return &testpb.SimpleResponse{Payload: fresh(in.Payload)}, nil
}

func (s service) StreamingOutputCall(in *testpb.StreamingOutputCallRequest, to grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	for range s.messages {
		if err := to.Send(&testpb.StreamingOutputCallResponse{Payload: fresh(in.Payload)}); err != nil {
			return err
		}
	}
	return nil
}

func (service) FullDuplexCall(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	for {
		in, err := s.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.Send(&testpb.StreamingOutputCallResponse{Payload: fresh(in.Payload)}); err != nil {
			return err
		}
	}
}
