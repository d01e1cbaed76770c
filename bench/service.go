package main

import (
	"bytes"
	"context"
	"io"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall/bench/internal/benchpb"
	"github.com/nearcall/nearcall/bench/internal/blobs"
)

// Services are the services that rivals call.
type Services interface {
	testpb.TestServiceServer
	benchpb.RecordsServer
	blobs.BlobsServer
}

func register(to grpc.ServiceRegistrar, s Services) {
	testpb.RegisterTestServiceServer(to, s)
	benchpb.RegisterRecordsServer(to, s)
	blobs.RegisterBlobsServer(to, s)
}

// service implements the services for all rivals. Echoes return the message they received,
// so that calls dominate the measurement; the messages of a stream are built one by one, as
// in real services. Some allocations are unavoidable, and part of every rival's figure:
//
//   - A message with a nested payload takes three: the message, the payload and its
//     bytes.
//   - A unary call needs two such messages, the request that the handler receives and the
//     reply that the caller receives, and the response that the handler builds around
//     the payload. That makes 7, as the rival "direct-clone" shows. The generated stub
//     adds a slice of call options: 8.
//   - A message of a server stream takes two such messages, the one that the handler
//     builds and the one that the caller receives: 6.
//   - A bidi echo also takes two, as the caller sends the same message again and again,
//     and a response: 7.
type service struct {
	testpb.UnimplementedTestServiceServer
	benchpb.UnimplementedRecordsServer
	blobs.UnimplementedBlobsServer
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

func (service) StreamingInputCall(s grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]) error {
	n := 0
	for {
		in, err := s.Recv()
		if err == io.EOF {
			return s.SendAndClose(&testpb.StreamingInputCallResponse{AggregatedPayloadSize: int32(n)})
		}
		if err != nil {
			return err
		}
		n += len(in.GetPayload().GetBody())
	}
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
