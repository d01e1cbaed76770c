package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall/bench/internal/benchpb"
)

// cleartext returns the protocols of a server or client that uses only HTTP/2 without TLS.
func cleartext() *http.Protocols {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return p
}

func serveConnect(network, address string, s Services) (string, func(), error) {
	return serveOn(network, address, func(lis net.Listener) (run, stop func()) {
		srv := &http.Server{Handler: connectHandler(s), Protocols: cleartext()}
		return func() { _ = srv.Serve(lis) }, func() { _ = srv.Close() }
	})
}

// connectHandler has the handlers that Connect's generator would make.
func connectHandler(s Services) http.Handler {
	mux := http.NewServeMux()
	handle := func(method string, h http.Handler) { mux.Handle(method, h) }
	handle(testpb.TestService_EmptyCall_FullMethodName, connect.NewUnaryHandlerSimple(testpb.TestService_EmptyCall_FullMethodName, s.EmptyCall))
	handle(testpb.TestService_UnaryCall_FullMethodName, connect.NewUnaryHandlerSimple(testpb.TestService_UnaryCall_FullMethodName, s.UnaryCall))
	handle(benchpb.Records_Echo_FullMethodName, connect.NewUnaryHandlerSimple(benchpb.Records_Echo_FullMethodName, s.Echo))
	handle(benchpb.Records_EchoPair_FullMethodName, connect.NewUnaryHandlerSimple(benchpb.Records_EchoPair_FullMethodName, s.EchoPair))
	handle(benchpb.Records_EchoText_FullMethodName, connect.NewUnaryHandlerSimple(benchpb.Records_EchoText_FullMethodName, s.EchoText))
	handle(testpb.TestService_StreamingOutputCall_FullMethodName, connect.NewServerStreamHandlerSimple(testpb.TestService_StreamingOutputCall_FullMethodName,
		func(ctx context.Context, in *testpb.StreamingOutputCallRequest, out *connect.ServerStream[testpb.StreamingOutputCallResponse]) error {
			return s.StreamingOutputCall(in, connectOut{to: out})
		}))
	handle(testpb.TestService_StreamingInputCall_FullMethodName, connect.NewClientStreamHandler(testpb.TestService_StreamingInputCall_FullMethodName,
		func(ctx context.Context, in *connect.ClientStream[testpb.StreamingInputCallRequest]) (*connect.Response[testpb.StreamingInputCallResponse], error) {
			from := connectAll{from: in}
			if err := s.StreamingInputCall(&from); err != nil {
				return nil, err
			}
			return connect.NewResponse(from.reply), nil
		}))
	handle(testpb.TestService_FullDuplexCall_FullMethodName, connect.NewBidiStreamHandler(testpb.TestService_FullDuplexCall_FullMethodName,
		func(ctx context.Context, both *connect.BidiStream[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
			return s.FullDuplexCall(connectBoth{with: both})
		}))
	return mux
}

// connectOut and connectBoth adapt Connect's streams to the services.
type connectOut struct {
	grpc.ServerStream // nil: only the methods below exist
	to                *connect.ServerStream[testpb.StreamingOutputCallResponse]
}

func (s connectOut) Send(m *testpb.StreamingOutputCallResponse) error { return s.to.Send(m) }

// A connectAll adapts Connect's client stream to the services.
type connectAll struct {
	grpc.ServerStream // nil: only the methods below exist
	from              *connect.ClientStream[testpb.StreamingInputCallRequest]
	reply             *testpb.StreamingInputCallResponse
}

func (s *connectAll) Recv() (*testpb.StreamingInputCallRequest, error) {
	if s.from.Receive() {
		return s.from.Msg(), nil
	}
	if err := s.from.Err(); err != nil {
		return nil, err
	}
	return nil, io.EOF
}

func (s *connectAll) SendAndClose(m *testpb.StreamingInputCallResponse) error {
	s.reply = m
	return nil
}

type connectBoth struct {
	grpc.ServerStream // nil: only the methods below exist
	with              *connect.BidiStream[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]
}

func (s connectBoth) Send(m *testpb.StreamingOutputCallResponse) error { return s.with.Send(m) }

func (s connectBoth) Recv() (*testpb.StreamingOutputCallRequest, error) {
	m, err := s.with.Receive()
	return m, ended(err)
}

// ended returns io.EOF if err wraps it, and otherwise err.
func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	return err
}

// connectClient calls with the clients that Connect's generator would make.
type connectClient struct {
	testpb.TestServiceClient // nil: only the methods below exist

	empty  *connect.Client[testpb.Empty, testpb.Empty]
	unary  *connect.Client[testpb.SimpleRequest, testpb.SimpleResponse]
	record *connect.Client[benchpb.Record, benchpb.Record]
	pair   *connect.Client[benchpb.Pair, benchpb.Pair]
	text   *connect.Client[benchpb.Text, benchpb.Text]
	out    *connect.Client[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]
	in     *connect.Client[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]
	both   *connect.Client[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]
}

func dialConnect(network, address string, _ Row) (Conn, error) {
	transport := &http.Transport{
		Protocols: cleartext(),
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		},
	}
	c := newConnectClient(&http.Client{Transport: transport}, "http://bench")
	return Conn{Test: c, Records: c, Close: transport.CloseIdleConnections}, nil
}

// newConnectClient returns a client of the server at url, without compression.
func newConnectClient(client *http.Client, url string) *connectClient {
	plain := connect.WithAcceptCompression("gzip", nil, nil)
	return &connectClient{
		empty:  connect.NewClient[testpb.Empty, testpb.Empty](client, url+testpb.TestService_EmptyCall_FullMethodName, plain),
		unary:  connect.NewClient[testpb.SimpleRequest, testpb.SimpleResponse](client, url+testpb.TestService_UnaryCall_FullMethodName, plain),
		record: connect.NewClient[benchpb.Record, benchpb.Record](client, url+benchpb.Records_Echo_FullMethodName, plain),
		pair:   connect.NewClient[benchpb.Pair, benchpb.Pair](client, url+benchpb.Records_EchoPair_FullMethodName, plain),
		text:   connect.NewClient[benchpb.Text, benchpb.Text](client, url+benchpb.Records_EchoText_FullMethodName, plain),
		out: connect.NewClient[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse](
			client, url+testpb.TestService_StreamingOutputCall_FullMethodName, plain),
		in: connect.NewClient[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse](
			client, url+testpb.TestService_StreamingInputCall_FullMethodName, plain),
		both: connect.NewClient[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse](
			client, url+testpb.TestService_FullDuplexCall_FullMethodName, plain),
	}
}

// connectUnary makes a unary call.
func connectUnary[In, Out any](ctx context.Context, c *connect.Client[In, Out], in *In) (*Out, error) {
	out, err := c.CallUnary(ctx, connect.NewRequest(in))
	if err != nil {
		return nil, err
	}
	return out.Msg, nil
}

func (c *connectClient) EmptyCall(ctx context.Context, in *testpb.Empty, _ ...grpc.CallOption) (*testpb.Empty, error) {
	return connectUnary(ctx, c.empty, in)
}

func (c *connectClient) UnaryCall(ctx context.Context, in *testpb.SimpleRequest, _ ...grpc.CallOption) (*testpb.SimpleResponse, error) {
	return connectUnary(ctx, c.unary, in)
}

func (c *connectClient) Echo(ctx context.Context, in *benchpb.Record, _ ...grpc.CallOption) (*benchpb.Record, error) {
	return connectUnary(ctx, c.record, in)
}

func (c *connectClient) EchoPair(ctx context.Context, in *benchpb.Pair, _ ...grpc.CallOption) (*benchpb.Pair, error) {
	return connectUnary(ctx, c.pair, in)
}

func (c *connectClient) EchoText(ctx context.Context, in *benchpb.Text, _ ...grpc.CallOption) (*benchpb.Text, error) {
	return connectUnary(ctx, c.text, in)
}

func (c *connectClient) StreamingOutputCall(ctx context.Context, in *testpb.StreamingOutputCallRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[testpb.StreamingOutputCallResponse], error) {
	s, err := c.out.CallServerStream(ctx, connect.NewRequest(in))
	if err != nil {
		return nil, err
	}
	return connectIn{from: s}, nil
}

func (c *connectClient) StreamingInputCall(ctx context.Context, _ ...grpc.CallOption) (grpc.ClientStreamingClient[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse], error) {
	return connectSend{to: c.in.CallClientStream(ctx)}, nil
}

func (c *connectClient) FullDuplexCall(ctx context.Context, _ ...grpc.CallOption) (grpc.BidiStreamingClient[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse], error) {
	return connectEcho{with: c.both.CallBidiStream(ctx)}, nil
}

// connectIn and connectEcho adapt Connect's streams to the interfaces of gRPC's generated code.
type connectIn struct {
	grpc.ClientStream // nil: only the methods below exist
	from              *connect.ServerStreamForClient[testpb.StreamingOutputCallResponse]
}

func (s connectIn) Recv() (*testpb.StreamingOutputCallResponse, error) {
	if s.from.Receive() {
		return s.from.Msg(), nil
	}
	if err := s.from.Err(); err != nil {
		return nil, err
	}
	if err := s.from.Close(); err != nil {
		return nil, err
	}
	return nil, io.EOF
}

type connectSend struct {
	grpc.ClientStream // nil: only the methods below exist
	to                *connect.ClientStreamForClient[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]
}

func (s connectSend) Send(m *testpb.StreamingInputCallRequest) error { return s.to.Send(m) }

func (s connectSend) CloseAndRecv() (*testpb.StreamingInputCallResponse, error) {
	out, err := s.to.CloseAndReceive()
	if err != nil {
		return nil, err
	}
	return out.Msg, nil
}

type connectEcho struct {
	grpc.ClientStream // nil: only the methods below exist
	with              *connect.BidiStreamForClient[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]
}

func (s connectEcho) Send(m *testpb.StreamingOutputCallRequest) error { return s.with.Send(m) }
func (s connectEcho) CloseSend() error                                { return s.with.CloseRequest() }

func (s connectEcho) Recv() (*testpb.StreamingOutputCallResponse, error) {
	m, err := s.with.Receive()
	if err = ended(err); err == io.EOF {
		_ = s.with.CloseResponse()
	}
	return m, err
}
