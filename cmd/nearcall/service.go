package main

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
)

const (
	size     = 32  // size of a payload, in bytes
	messages = 100 // messages per stream
)

// service is the service that the tour calls: that of grpc-go's own tests. It does not depend
// on the path.
type service struct {
	testpb.UnimplementedTestServiceServer
}

// answer returns a new payload, as most handlers would make one.
func answer(to *testpb.Payload) *testpb.Payload {
	return &testpb.Payload{Body: bytes.Clone(to.GetBody())}
}

func (service) UnaryCall(_ context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return &testpb.SimpleResponse{Payload: answer(in.Payload)}, nil
}

func (service) StreamingOutputCall(in *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	for range messages {
		if err := s.Send(&testpb.StreamingOutputCallResponse{Payload: answer(in.Payload)}); err != nil {
			return err
		}
	}
	return nil
}

func (service) FullDuplexCall(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	for {
		in, err := s.Recv()
		if err == nil {
			err = s.Send(&testpb.StreamingOutputCallResponse{Payload: answer(in.Payload)})
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// A call is a kind of call that the tour measures. open returns a function that makes one call, and
// fails if the answer is wrong.
type call struct {
	name string
	open func(ctx context.Context, client testpb.TestServiceClient) (do func() error, err error)
}

var calls = []call{
	{fmt.Sprintf("unary, %d B", size), unary},
	{fmt.Sprintf("server stream, %d × %d B", messages, size), serverStream},
	{fmt.Sprintf("bidi echo, %d B", size), bidiEcho},
}

func payload() *testpb.Payload { return &testpb.Payload{Body: bytes.Repeat([]byte{'n'}, size)} }

// check returns err, or an error if got is not want.
func check(err error, what string, got, want int) error {
	if err == nil && got != want {
		return fmt.Errorf("wrong answer: %d %s, want %d", got, what, want)
	}
	return err
}

func unary(ctx context.Context, client testpb.TestServiceClient) (do func() error, err error) {
	in := &testpb.SimpleRequest{Payload: payload()}
	return func() error {
		out, err := client.UnaryCall(ctx, in)
		return check(err, "bytes in the reply", len(out.GetPayload().GetBody()), size)
	}, nil
}

func serverStream(ctx context.Context, client testpb.TestServiceClient) (do func() error, err error) {
	in := &testpb.StreamingOutputCallRequest{Payload: payload()}
	return func() error {
		s, err := client.StreamingOutputCall(ctx, in)
		n := -1
		for ; err == nil; n++ {
			var out *testpb.StreamingOutputCallResponse
			out, err = s.Recv()
			err = check(err, "bytes in a message", len(out.GetPayload().GetBody()), size)
		}
		if err == io.EOF {
			err = nil
		}
		return check(err, "messages", n, messages)
	}, nil
}

// bidiEcho keeps one stream open. A call is one message there and back.
func bidiEcho(ctx context.Context, client testpb.TestServiceClient) (do func() error, err error) {
	s, err := client.FullDuplexCall(ctx)
	in := &testpb.StreamingOutputCallRequest{Payload: payload()}
	return func() error {
		if err := s.Send(in); err != nil {
			return err
		}
		out, err := s.Recv()
		return check(err, "bytes in the echo", len(out.GetPayload().GetBody()), size)
	}, err
}
