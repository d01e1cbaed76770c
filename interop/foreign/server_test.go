package foreign

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// service implements grpc.testing.TestService as far as the Python tests need it, by the
// rules of gRPC's interop tests. It also understands these metadata keys:
//
//	gate     the handler sends its header and waits until the test sends "open"
//	details  a status other than OK has details
type service struct {
	testpb.UnimplementedTestServiceServer
	gate  chan struct{}
	ended chan error // the context errors of handlers that ended while they waited at the gate
}

func newService() *service {
	return &service{gate: make(chan struct{}), ended: make(chan error, 100)}
}

// enter handles the metadata of a call. It waits at the gate if the metadata asks for it.
func (s *service) enter(ctx context.Context, setHeader, setTrailer func(metadata.MD)) error {
	md, _ := metadata.FromIncomingContext(ctx)
	header, trailer := metadata.MD{}, metadata.MD{}
	for key, values := range md {
		switch {
		case strings.HasPrefix(key, "x-grpc-test-echo-initial"):
			header[key] = values
		case strings.HasPrefix(key, "x-grpc-test-echo-trailing"):
			trailer[key] = values
		}
	}
	if p, ok := peer.FromContext(ctx); ok {
		header.Set("network", p.Addr.Network())
	}
	setHeader(header)
	setTrailer(trailer)
	if len(md["gate"]) == 0 {
		return nil
	}
	if err := grpc.SendHeader(ctx, nil); err != nil { // tells the test that the handler waits
		return err
	}
	select {
	case <-s.gate:
		return nil
	case <-ctx.Done():
		s.ended <- ctx.Err()
		return status.FromContextError(ctx.Err()).Err()
	}
}

func (s *service) enterStream(stream grpc.ServerStream) error {
	return s.enter(stream.Context(), func(md metadata.MD) { stream.SetHeader(md) }, stream.SetTrailer)
}

// result returns the status that a request asks for, as an error.
func result(ctx context.Context, want *testpb.EchoStatus) error {
	if want.GetCode() == 0 {
		return nil
	}
	st := status.New(codes.Code(want.GetCode()), want.GetMessage())
	if md, _ := metadata.FromIncomingContext(ctx); len(md["details"]) > 0 {
		detailed, err := st.WithDetails(&errdetails.ErrorInfo{Reason: "ASKED_FOR", Domain: "foreign"})
		if err != nil {
			return err
		}
		st = detailed
	}
	return st.Err()
}

func payload(size int32) *testpb.Payload {
	body := make([]byte, size)
	for i := range body {
		body[i] = byte(i % 251)
	}
	return &testpb.Payload{Body: body}
}

func (s *service) EmptyCall(context.Context, *testpb.Empty) (*testpb.Empty, error) {
	return &testpb.Empty{}, nil
}

func (s *service) UnaryCall(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	err := s.enter(ctx,
		func(md metadata.MD) { grpc.SetHeader(ctx, md) },
		func(md metadata.MD) { grpc.SetTrailer(ctx, md) })
	if err != nil {
		return nil, err
	}
	if err := result(ctx, in.GetResponseStatus()); err != nil {
		return nil, err
	}
	// The user name reports the size of the request's payload.
	return &testpb.SimpleResponse{
		Payload:  payload(in.GetResponseSize()),
		Username: fmt.Sprint(len(in.GetPayload().GetBody())),
	}, nil
}

func (s *service) StreamingOutputCall(in *testpb.StreamingOutputCallRequest, stream grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	if err := s.enterStream(stream); err != nil {
		return err
	}
	for _, p := range in.GetResponseParameters() {
		if err := stream.Send(&testpb.StreamingOutputCallResponse{Payload: payload(p.GetSize())}); err != nil {
			return err
		}
	}
	return result(stream.Context(), in.GetResponseStatus())
}

func (s *service) StreamingInputCall(stream grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]) error {
	if err := s.enterStream(stream); err != nil {
		return err
	}
	sum := int32(0)
	for {
		in, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(&testpb.StreamingInputCallResponse{AggregatedPayloadSize: sum})
		}
		if err != nil {
			return err
		}
		sum += int32(len(in.GetPayload().GetBody()))
	}
}

func (s *service) FullDuplexCall(stream grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	if err := s.enterStream(stream); err != nil {
		return err
	}
	for {
		in, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := result(stream.Context(), in.GetResponseStatus()); err != nil {
			return err
		}
		for _, p := range in.GetResponseParameters() {
			if err := stream.Send(&testpb.StreamingOutputCallResponse{Payload: payload(p.GetSize())}); err != nil {
				return err
			}
		}
	}
}
