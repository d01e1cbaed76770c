package main

import (
	"context"
	"errors"
	"io"
	"strings"

	"connectrpc.com/connect/v2"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/nearcall/nearcall/bench/internal/benchpb"
)

// The specs of the methods, as Connect's generator would make them.
var (
	specEmpty  = specOf(testpb.TestService_EmptyCall_FullMethodName, connect.StreamTypeUnary)
	specUnary  = specOf(testpb.TestService_UnaryCall_FullMethodName, connect.StreamTypeUnary)
	specRecord = specOf(benchpb.Records_Echo_FullMethodName, connect.StreamTypeUnary)
	specPair   = specOf(benchpb.Records_EchoPair_FullMethodName, connect.StreamTypeUnary)
	specText   = specOf(benchpb.Records_EchoText_FullMethodName, connect.StreamTypeUnary)
	specOut    = specOf(testpb.TestService_StreamingOutputCall_FullMethodName, connect.StreamTypeServer)
	specIn     = specOf(testpb.TestService_StreamingInputCall_FullMethodName, connect.StreamTypeClient)
	specBoth   = specOf(testpb.TestService_FullDuplexCall_FullMethodName, connect.StreamTypeBidi)
)

func specOf(method string, kind connect.StreamType) connect.Spec {
	schema, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(strings.ReplaceAll(method[1:], "/", ".")))
	if err != nil {
		panic(err)
	}
	return connect.Spec{Procedure: method, StreamType: kind, Schema: schema}
}

// connectServer has the handlers that Connect's generator would make.
func connectServer(s Services) *connect.Server {
	server := connect.NewServer()
	server.Register(
		connect.Method{Spec: specEmpty, Handler: connectUnary(s.EmptyCall)},
		connect.Method{Spec: specUnary, Handler: connectUnary(s.UnaryCall)},
		connect.Method{Spec: specRecord, Handler: connectUnary(s.Echo)},
		connect.Method{Spec: specPair, Handler: connectUnary(s.EchoPair)},
		connect.Method{Spec: specText, Handler: connectUnary(s.EchoText)},
		connect.Method{Spec: specOut, Handler: func(ctx context.Context, _ connect.Spec, stream connect.ServerStream) error {
			in := new(testpb.StreamingOutputCallRequest)
			if err := stream.Receive(in); err != nil {
				return err
			}
			return s.StreamingOutputCall(in, &grpc.GenericServerStream[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]{ServerStream: connectHandled(ctx, stream)})
		}},
		connect.Method{Spec: specIn, Handler: func(ctx context.Context, _ connect.Spec, stream connect.ServerStream) error {
			return s.StreamingInputCall(&grpc.GenericServerStream[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]{ServerStream: connectHandled(ctx, stream)})
		}},
		connect.Method{Spec: specBoth, Handler: func(ctx context.Context, _ connect.Spec, stream connect.ServerStream) error {
			return s.FullDuplexCall(&grpc.GenericServerStream[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]{ServerStream: connectHandled(ctx, stream)})
		}},
	)
	return server
}

// connectUnary returns the handler of a unary method.
func connectUnary[In, Out any](call func(context.Context, *In) (*Out, error)) connect.ServerFunc {
	return func(ctx context.Context, _ connect.Spec, stream connect.ServerStream) error {
		in := new(In)
		if err := stream.Receive(in); err != nil {
			return err
		}
		out, err := call(ctx, in)
		if err != nil {
			return err
		}
		return stream.Send(out)
	}
}

// connectHandled adapts a handler's stream of Connect to gRPC's generated code.
func connectHandled(ctx context.Context, stream connect.ServerStream) grpc.ServerStream {
	return handlerStream{ctx: ctx, send: stream.Send, recv: func(m any) error { return ended(stream.Receive(m)) }}
}

// ended returns io.EOF if err wraps it, and otherwise err.
func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	return err
}

// connectConn calls over a transport of Connect.
func connectConn(over connect.Transport, end func()) Conn {
	c := connectClient{client: connect.NewClient(over)}
	return Conn{Test: c, Records: c, Close: end}
}

// connectClient calls as the code does that Connect's generator would make.
type connectClient struct {
	testpb.TestServiceClient // nil: only the methods below exist
	client                   *connect.Client
}

func callUnary[Out any](ctx context.Context, c connectClient, spec connect.Spec, in any) (*Out, error) {
	out := new(Out)
	if err := c.client.CallUnary(ctx, spec, in, out); err != nil {
		return nil, err
	}
	return out, nil
}

func (c connectClient) EmptyCall(ctx context.Context, in *testpb.Empty, _ ...grpc.CallOption) (*testpb.Empty, error) {
	return callUnary[testpb.Empty](ctx, c, specEmpty, in)
}

func (c connectClient) UnaryCall(ctx context.Context, in *testpb.SimpleRequest, _ ...grpc.CallOption) (*testpb.SimpleResponse, error) {
	return callUnary[testpb.SimpleResponse](ctx, c, specUnary, in)
}

func (c connectClient) Echo(ctx context.Context, in *benchpb.Record, _ ...grpc.CallOption) (*benchpb.Record, error) {
	return callUnary[benchpb.Record](ctx, c, specRecord, in)
}

func (c connectClient) EchoPair(ctx context.Context, in *benchpb.Pair, _ ...grpc.CallOption) (*benchpb.Pair, error) {
	return callUnary[benchpb.Pair](ctx, c, specPair, in)
}

func (c connectClient) EchoText(ctx context.Context, in *benchpb.Text, _ ...grpc.CallOption) (*benchpb.Text, error) {
	return callUnary[benchpb.Text](ctx, c, specText, in)
}

func (c connectClient) StreamingOutputCall(ctx context.Context, in *testpb.StreamingOutputCallRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[testpb.StreamingOutputCallResponse], error) {
	s, err := c.client.CallServerStream(ctx, specOut, in)
	return &grpc.GenericClientStream[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]{ClientStream: connectCall{on: s}}, err
}

func (c connectClient) StreamingInputCall(ctx context.Context, _ ...grpc.CallOption) (grpc.ClientStreamingClient[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse], error) {
	s, err := c.client.CallClientStream(ctx, specIn)
	return &grpc.GenericClientStream[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]{ClientStream: connectCall{on: s}}, err
}

func (c connectClient) FullDuplexCall(ctx context.Context, _ ...grpc.CallOption) (grpc.BidiStreamingClient[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse], error) {
	s, err := c.client.CallClientStream(ctx, specBoth)
	return &grpc.GenericClientStream[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]{ClientStream: connectCall{on: s}}, err
}

// A connectCall adapts a caller's stream of Connect to gRPC's generated code.
type connectCall struct {
	grpc.ClientStream // nil: only the methods below exist
	on                connect.ClientStream
}

func (c connectCall) SendMsg(m any) error { return c.on.Send(m) }
func (c connectCall) RecvMsg(m any) error { return ended(c.on.Receive(m)) }
func (c connectCall) CloseSend() error    { return c.on.CloseSend() }
