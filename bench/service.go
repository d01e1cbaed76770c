package main

import (
	"bytes"
	"context"
	"io"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall/bench/internal/benchpb"
)

// Services are what a rival carries calls to.
type Services interface {
	testpb.TestServiceServer
	benchpb.RecordsServer
}

func register(to grpc.ServiceRegistrar, s Services) {
	testpb.RegisterTestServiceServer(to, s)
	benchpb.RegisterRecordsServer(to, s)
}

// service is what every rival runs. Echoes pass on what they got, so that it is
// the calls that are measured; a stream's messages are built one by one, as
// those of real services are. Some allocations are nobody's fault, and part of
// every rival's figure:
//
//   - A message with a nested payload is three: the message, the payload, its
//     bytes.
//   - A unary call has two such messages that nobody can do without, the
//     request as the handler gets it and the reply as the caller gets it, and
//     the response that the handler builds around the payload. That makes 7;
//     the rival "direct-clone" shows them. The generated stub adds a slice of
//     call options: 8.
//   - A message of a server stream is two, what the handler builds and what
//     the caller gets: 6.
//   - A bidi echo is two again, since the caller sends one message over and
//     over, and a response: 7.
type service struct {
	testpb.UnimplementedTestServiceServer
	benchpb.UnimplementedRecordsServer
	messages int
}

func fresh(like *testpb.Payload) *testpb.Payload {
	return &testpb.Payload{Body: bytes.Clone(like.GetBody())}
}

func (service) EmptyCall(context.Context, *testpb.Empty) (*testpb.Empty, error) {
	return new(testpb.Empty), nil
}

func (service) UnaryCall(_ context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return &testpb.SimpleResponse{Payload: in.Payload}, nil
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
		if err := s.Send(&testpb.StreamingOutputCallResponse{Payload: in.Payload}); err != nil {
			return err
		}
	}
}

func (service) Echo(_ context.Context, in *benchpb.Record) (*benchpb.Record, error) { return in, nil }

func (service) EchoPair(_ context.Context, in *benchpb.Pair) (*benchpb.Pair, error) { return in, nil }

func (service) EchoText(_ context.Context, in *benchpb.Text) (*benchpb.Text, error) { return in, nil }
