package promises

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"syscall"

	"connectrpc.com/connect"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

var (
	grpcWeb = connect.WithGRPCWeb()
	json    = connect.WithProtoJSON()
)

// A webCaller calls with connect-go over one version of HTTP.
type webCaller struct {
	transport *http.Transport
	calls     *connect.Client[pb.SimpleRequest, pb.SimpleResponse]
	uploads   *connect.Client[pb.StreamingInputCallRequest, pb.StreamingInputCallResponse]
	downloads *connect.Client[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse]

	mu   sync.Mutex
	open []connect.StreamingClientConn // whose requests have not ended
}

func dialWeb(version int, opts ...connect.ClientOption) func(*world, *line) caller {
	return func(w *world, l *line) caller {
		tr := &http.Transport{
			Protocols: new(http.Protocols),
			HTTP2:     &http.HTTP2Config{StrictMaxConcurrentRequests: true},
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := l.dial(ctx, network, address)
				if err != nil {
					return nil, err
				}
				l.count(1, 0)
				return &countedConn{Conn: conn, line: l}, nil
			},
		}
		tr.Protocols.SetHTTP1(version == 1)
		tr.Protocols.SetUnencryptedHTTP2(version == 2)
		client, url := &http.Client{Transport: tr}, "http://"+w.addr.String()
		return &webCaller{
			transport: tr,
			calls:     connect.NewClient[pb.SimpleRequest, pb.SimpleResponse](client, url+pb.TestService_UnaryCall_FullMethodName, opts...),
			uploads:   connect.NewClient[pb.StreamingInputCallRequest, pb.StreamingInputCallResponse](client, url+pb.TestService_StreamingInputCall_FullMethodName, opts...),
			downloads: connect.NewClient[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse](client, url+pb.TestService_StreamingOutputCall_FullMethodName, opts...),
		}
	}
}

// A countedConn is a connection whose end the line counts.
type countedConn struct {
	net.Conn
	line  *line
	ended bool // guarded by line.mu
}

func (c *countedConn) Close() error {
	c.line.mu.Lock()
	if !c.ended {
		c.ended = true
		c.line.ended++
	}
	c.line.mu.Unlock()
	return c.Conn.Close()
}

func (c *webCaller) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.open {
		_ = conn.CloseRequest()
	}
	c.transport.CloseIdleConnections()
	return nil
}

func (c *webCaller) unary(ctx context.Context, in *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	req := connect.NewRequest(in)
	addMetadata(ctx, req.Header())
	resp, err := c.calls.CallUnary(ctx, req)
	if err != nil {
		return nil, statusOf(err)
	}
	return resp.Msg, nil
}

func (c *webCaller) upload(ctx context.Context) func() error {
	s := c.uploads.CallClientStream(ctx)
	addMetadata(ctx, s.RequestHeader())
	err := s.Send(nil) // the header
	return func() error {
		if err != nil {
			return statusOf(err)
		}
		conn, err := s.Conn()
		if err != nil {
			return statusOf(err)
		}
		c.mu.Lock()
		c.open = append(c.open, conn)
		c.mu.Unlock()
		defer conn.CloseResponse()
		return statusOf(conn.Receive(new(pb.StreamingInputCallResponse)))
	}
}

func (c *webCaller) download(ctx context.Context) func() error {
	req := connect.NewRequest(new(pb.StreamingOutputCallRequest))
	addMetadata(ctx, req.Header())
	s, err := c.downloads.CallServerStream(ctx, req)
	return func() error {
		if err != nil {
			return statusOf(err)
		}
		defer s.Close()
		for s.Receive() {
		}
		return statusOf(s.Err())
	}
}

func addMetadata(ctx context.Context, header http.Header) {
	md, _ := metadata.FromOutgoingContext(ctx)
	for key, values := range md {
		for _, v := range values {
			header.Add(key, v)
		}
	}
}

// statusOf returns an error of connect-go as a status.
func statusOf(err error) error {
	if err == nil {
		return nil
	}
	var e *connect.Error
	switch {
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE): // connect-go makes Canceled of it
		return status.Error(codes.Unavailable, err.Error())
	case errors.As(err, &e):
		return status.Error(codes.Code(e.Code()), e.Message())
	}
	return err
}
