package main

import (
	"bytes"
	"context"
	"fmt"
	"io"

	testpb "google.golang.org/grpc/interop/grpc_testing"
)

// A Kind is a kind of call. An operation is one call, except where its
// comment says otherwise.
type Kind struct {
	Name string
	open func(ctx context.Context, client testpb.TestServiceClient, row Row) (lane, error)
}

var (
	// Unary sends a payload and gets one of the same size.
	Unary = Kind{"unary", openUnary}

	// ServerStream sends one message and receives Row.Messages, to the end of
	// the stream.
	ServerStream = Kind{"server stream", openServerStream}

	// BidiEcho keeps one stream; an operation is a message there and back.
	BidiEcho = Kind{"bidi echo", openBidiEcho}
)

func payload(size int) *testpb.Payload { return &testpb.Payload{Body: bytes.Repeat([]byte{'n'}, size)} }

func openUnary(ctx context.Context, client testpb.TestServiceClient, row Row) (lane, error) {
	in := &testpb.SimpleRequest{Payload: payload(row.Size)}
	return lane{do: func() error {
		out, err := client.UnaryCall(ctx, in)
		if err != nil {
			return err
		}
		return check("bytes in the reply", len(out.GetPayload().GetBody()), row.Size)
	}}, nil
}

func openServerStream(ctx context.Context, client testpb.TestServiceClient, row Row) (lane, error) {
	in := &testpb.StreamingOutputCallRequest{Payload: payload(row.Size)}
	return lane{do: func() error {
		s, err := client.StreamingOutputCall(ctx, in)
		if err != nil {
			return err
		}
		for n := 0; ; n++ {
			out, err := s.Recv()
			if err == io.EOF {
				return check("messages", n, row.Messages)
			}
			if err != nil {
				return err
			}
			if err := check("bytes in a message", len(out.GetPayload().GetBody()), row.Size); err != nil {
				return err
			}
		}
	}}, nil
}

func openBidiEcho(ctx context.Context, client testpb.TestServiceClient, row Row) (lane, error) {
	s, err := client.FullDuplexCall(ctx)
	if err != nil {
		return lane{}, err
	}
	in := &testpb.StreamingOutputCallRequest{Payload: payload(row.Size)}
	do := func() error {
		if err := s.Send(in); err != nil {
			return err
		}
		out, err := s.Recv()
		if err != nil {
			return err
		}
		return check("bytes in the echo", len(out.GetPayload().GetBody()), row.Size)
	}
	end := func() error {
		if err := s.CloseSend(); err != nil {
			return err
		}
		if out, err := s.Recv(); err != io.EOF {
			return fmt.Errorf("the stream ended with %v, %v, want io.EOF", out, err)
		}
		return nil
	}
	return lane{do, end}, nil
}

func check(what string, got, want int) error {
	if got != want {
		return fmt.Errorf("wrong answer: %d %s, want %d", got, what, want)
	}
	return nil
}
