package cpptest

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/interop/cpp/echopb"
)

// service is the tests' service, as cpp/test/echo_service.hpp has it.
type service struct {
	echopb.UnimplementedEchoServer
	waiting, released atomic.Int32
}

func (s *service) Unary(ctx context.Context, q *echopb.Message) (*echopb.Message, error) {
	header, trailer := answer(ctx)
	if err := errors.Join(grpc.SetHeader(ctx, header), grpc.SetTrailer(ctx, trailer)); err != nil {
		return nil, err
	}
	in, _ := metadata.FromIncomingContext(ctx)
	if key := in.Get("x-see"); len(key) > 0 {
		return s.see(ctx, key[0]), nil
	}
	switch n := q.GetCount(); {
	case n > 0:
		return &echopb.Message{Data: make([]byte, n)}, nil
	case n < 0:
		return &echopb.Message{Count: int32(len(q.GetData()))}, nil
	}
	return &echopb.Message{Data: q.GetData()}, nil
}

func (s *service) see(ctx context.Context, key string) *echopb.Message {
	switch key {
	case "waiting":
		return &echopb.Message{Count: s.waiting.Load()}
	case "release":
		s.released.Add(1)
	case "deadline":
		if at, ok := ctx.Deadline(); ok {
			return &echopb.Message{Count: int32(time.Until(at).Milliseconds()) + 1}
		}
	default:
		in, _ := metadata.FromIncomingContext(ctx)
		var all strings.Builder
		for _, v := range in.Get(key) {
			all.WriteString(v + ";")
		}
		return &echopb.Message{Data: []byte(all.String())}
	}
	return &echopb.Message{}
}

func (*service) Fail(ctx context.Context, q *echopb.Message) (*echopb.Message, error) {
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

func (s *service) Slow(ctx context.Context, _ *echopb.Message) (*echopb.Message, error) {
	s.waiting.Add(1)
	<-ctx.Done()
	s.waiting.Add(-1)
	return nil, status.FromContextError(ctx.Err()).Err()
}

func (*service) Back(ctx context.Context, q *echopb.Message) (*echopb.Message, error) {
	client := echopb.NewEchoClient(nearcall.PeerConn(ctx))
	in, _ := metadata.FromIncomingContext(ctx)
	switch strings.Join(in.Get("x-back"), "") {
	case "Down":
		s, err := client.Down(ctx, q)
		if err != nil {
			return nil, err
		}
		for n := int32(0); ; n++ {
			if _, err := s.Recv(); err == io.EOF {
				return &echopb.Message{Count: n}, nil
			} else if err != nil {
				return nil, err
			}
		}
	case "Chat":
		s, err := client.Chat(ctx)
		if err != nil {
			return nil, err
		}
		for range q.GetCount() {
			if err := s.Send(q); err != nil {
				return nil, err
			}
			if _, err := s.Recv(); err != nil {
				return nil, err
			}
		}
		if err := s.CloseSend(); err != nil {
			return nil, err
		}
		if _, err := s.Recv(); err != io.EOF {
			return nil, err
		}
		return &echopb.Message{Count: q.GetCount()}, nil
	case "Up":
		s, err := client.Up(ctx)
		if err != nil {
			return nil, err
		}
		for range q.GetCount() {
			if s.Send(q) != nil {
				break
			}
		}
		return s.CloseAndRecv()
	case "Fail":
		return client.Fail(ctx, q)
	case "Slow":
		return client.Slow(ctx, q)
	case "Back":
		return client.Back(ctx, q)
	}
	return client.Unary(ctx, q)
}

func (s *service) Down(q *echopb.Message, to grpc.ServerStreamingServer[echopb.Message]) error {
	if err := s.begin(to); err != nil {
		return err
	}
	for i := range q.GetCount() {
		if err := to.Send(&echopb.Message{Data: q.GetData(), Count: i}); err != nil {
			return err
		}
	}
	return end(to)
}

func (s *service) Up(from grpc.ClientStreamingServer[echopb.Message, echopb.Message]) error {
	if err := s.begin(from); err != nil {
		return err
	}
	n := 0
	for left := number(from, "x-after", -1); left != 0; left-- {
		m, err := from.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		n += len(m.GetData())
	}
	if err := end(from); err != nil {
		return err
	}
	return from.SendAndClose(&echopb.Message{Count: int32(n)})
}

func (s *service) Chat(with grpc.BidiStreamingServer[echopb.Message, echopb.Message]) error {
	if err := s.begin(with); err != nil {
		return err
	}
	for i := range number(with, "x-first", 0) {
		if err := with.Send(&echopb.Message{Count: int32(i)}); err != nil {
			return err
		}
	}
	for left := number(with, "x-after", -1); left != 0; left-- {
		m, err := with.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if err := with.Send(m); err != nil {
			return err
		}
	}
	return end(with)
}

// answer returns the header and the trailer that the caller has asked for.
func answer(ctx context.Context) (header, trailer metadata.MD) {
	in, _ := metadata.FromIncomingContext(ctx)
	header, trailer = metadata.MD{}, metadata.MD{}
	header.Append("x-header", in.Get("x-header")...)
	header.Append("x-header-bin", in.Get("x-header-bin")...)
	trailer.Append("x-trailer", in.Get("x-trailer")...)
	return header, trailer
}

// begin sets the metadata of a stream, and waits if the caller has asked for it.
func (s *service) begin(of grpc.ServerStream) error {
	header, trailer := answer(of.Context())
	of.SetTrailer(trailer)
	if err := of.SetHeader(header); err != nil {
		return err
	}
	if number(of, "x-hold", 0) == 0 {
		return nil
	}
	before := s.released.Load()
	s.waiting.Add(1)
	for of.Context().Err() == nil && s.released.Load() == before {
		time.Sleep(time.Millisecond)
	}
	s.waiting.Add(-1)
	return nil
}

// end returns the status that the caller has asked for.
func end(of grpc.ServerStream) error {
	if code := number(of, "x-code", 0); code != 0 {
		return status.Error(codes.Code(code), "ended early")
	}
	return nil
}

func number(of grpc.ServerStream, key string, otherwise int) int {
	in, _ := metadata.FromIncomingContext(of.Context())
	if n, err := strconv.Atoi(strings.Join(in.Get(key), "")); err == nil {
		return n
	}
	return otherwise
}
