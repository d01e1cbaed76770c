package main

import (
	"bytes"
	"context"
	"io"
	"maps"
	"slices"

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
//   - A record is 11 as the handler builds it, which shares its strings with
//     the request: the rival "direct" shows them. A copy is more.
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

func (service) Echo(_ context.Context, in *benchpb.Record) (*benchpb.Record, error) {
	out := &benchpb.Record{
		Id: in.Id, Title: in.Title, Owner: freshPerson(in.Owner), Lines: make([]*benchpb.Line, len(in.Lines)),
		Labels: maps.Clone(in.Labels), Tags: slices.Clone(in.Tags), Created: in.Created, Total: in.Total,
	}
	for i, l := range in.Lines {
		out.Lines[i] = &benchpb.Line{Item: l.GetItem(), Quantity: l.GetQuantity(), Price: l.GetPrice()}
	}
	return out, nil
}

func freshPerson(like *benchpb.Person) *benchpb.Person {
	a := like.GetAddress()
	return &benchpb.Person{
		Name: like.GetName(), Mail: like.GetMail(),
		Address: &benchpb.Address{Street: a.GetStreet(), City: a.GetCity(), Country: a.GetCountry()},
	}
}
