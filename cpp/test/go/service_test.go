package cpptest

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/cpp/test/go/echopb"
)

// service is the tests' service, as cpp/test/echo_service.hpp has it.
type service struct {
	echopb.UnimplementedEchoServer
}

func (service) Unary(ctx context.Context, q *echopb.Message) (*echopb.Message, error) {
	in, _ := metadata.FromIncomingContext(ctx)
	header, trailer := metadata.MD{}, metadata.MD{}
	header.Append("x-header", in.Get("x-header")...)
	header.Append("x-header-bin", in.Get("x-header-bin")...)
	trailer.Append("x-trailer", in.Get("x-trailer")...)
	if err := errors.Join(grpc.SetHeader(ctx, header), grpc.SetTrailer(ctx, trailer)); err != nil {
		return nil, err
	}
	switch n := q.GetCount(); {
	case n > 0:
		return &echopb.Message{Data: make([]byte, n)}, nil
	case n < 0:
		return &echopb.Message{Count: int32(len(q.GetData()))}, nil
	}
	return &echopb.Message{Data: q.GetData()}, nil
}

func (service) Fail(ctx context.Context, q *echopb.Message) (*echopb.Message, error) {
	if err := grpc.SetTrailer(ctx, metadata.Pairs("x-trailer", "failed")); err != nil {
		return nil, err
	}
	s := status.New(codes.Code(q.GetCount()), string(q.GetData()))
	detailed, err := s.WithDetails(protoadapt.MessageV1Of(&echopb.Message{Data: []byte("t.org/Msg")}))
	if err != nil {
		return nil, s.Err()
	}
	return nil, detailed.Err()
}

func (service) Slow(ctx context.Context, _ *echopb.Message) (*echopb.Message, error) {
	<-ctx.Done()
	return nil, status.FromContextError(ctx.Err()).Err()
}

func (service) Back(ctx context.Context, q *echopb.Message) (*echopb.Message, error) {
	return echopb.NewEchoClient(nearcall.PeerConn(ctx)).Unary(ctx, q)
}

func (service) Down(q *echopb.Message, s grpc.ServerStreamingServer[echopb.Message]) error {
	for i := range q.GetCount() {
		if err := s.Send(&echopb.Message{Data: q.GetData(), Count: i}); err != nil {
			return err
		}
	}
	return nil
}

func (service) Up(s grpc.ClientStreamingServer[echopb.Message, echopb.Message]) error {
	n := 0
	for {
		m, err := s.Recv()
		if err == io.EOF {
			return s.SendAndClose(&echopb.Message{Count: int32(n)})
		}
		if err != nil {
			return err
		}
		n += len(m.GetData())
	}
}

func (service) Chat(s grpc.BidiStreamingServer[echopb.Message, echopb.Message]) error {
	for {
		m, err := s.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.Send(m); err != nil {
			return err
		}
	}
}
