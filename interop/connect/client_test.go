package connect

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	pb "github.com/nearcall/nearcall/interop/connect/conformancepb"
)

// A service answers with what it was asked for, and says what it has seen in metadata.
type service struct {
	testpb.UnimplementedTestServiceServer
	runs  chan struct{} // UnaryCall with a negative size says that it runs,
	waits chan error    // and why it was left
}

func (s *service) UnaryCall(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	_ = grpc.SetHeader(ctx, metadata.MD{"x-seen": md.Get("x-a"), "x-seen-bin": md.Get("x-a-bin"), "x-type": md.Get("content-type")})
	_ = grpc.SetTrailer(ctx, metadata.Pairs("x-after", "t"))
	if e := in.ResponseStatus; e != nil {
		st, err := status.New(codes.Code(e.Code), e.Message).WithDetails(&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: "f"}}})
		if err != nil {
			return nil, err
		}
		return nil, st.Err()
	}
	if in.ResponseSize < 0 {
		s.runs <- struct{}{}
		<-ctx.Done()
		s.waits <- ctx.Err()
		return nil, ctx.Err()
	}
	return &testpb.SimpleResponse{Payload: &testpb.Payload{Body: make([]byte, in.ResponseSize)}}, nil
}

func (s *service) StreamingOutputCall(in *testpb.StreamingOutputCallRequest, out grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	for _, p := range in.ResponseParameters {
		if err := out.Send(&testpb.StreamingOutputCallResponse{Payload: &testpb.Payload{Body: make([]byte, p.Size)}}); err != nil {
			return err
		}
	}
	if in.ResponseStatus != nil {
		return status.Error(codes.Code(in.ResponseStatus.Code), in.ResponseStatus.Message)
	}
	return nil
}

func (s *service) StreamingInputCall(in grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]) error {
	n := 0
	for {
		m, err := in.Recv()
		if err == io.EOF {
			return in.SendAndClose(&testpb.StreamingInputCallResponse{AggregatedPayloadSize: int32(n)})
		}
		if err != nil {
			return err
		}
		n += len(m.Payload.GetBody())
	}
}

func (s *service) FullDuplexCall(both grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	for {
		m, err := both.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := both.Send(&testpb.StreamingOutputCallResponse{Payload: m.Payload}); err != nil {
			return err
		}
	}
}

// lookup answers a method without side effects with the names of the headers it has seen.
type lookup struct {
	pb.UnimplementedConformanceServiceServer
}

func (lookup) IdempotentUnary(_ context.Context, in *pb.IdempotentUnaryRequest) (*pb.IdempotentUnaryResponse, error) {
	return &pb.IdempotentUnaryResponse{Payload: &pb.ConformancePayload{Data: in.ResponseDefinition.GetResponseData()}}, nil
}

// A network is how a client reaches the server.
type network struct {
	version int // of HTTP
	secure  bool
}

var networks = map[string]network{
	"HTTP/1.1": {1, false}, "HTTP/1.1, TLS": {1, true}, "HTTP/2": {2, false}, "HTTP/2, TLS": {2, true},
}

// start starts a server, and returns the URL of its root and a client for it.
func start(t *testing.T, svc *service, n network) (string, *http.Client) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var opts []nearcall.ServerOption
	transport, scheme := &http.Transport{Protocols: new(http.Protocols)}, "http"
	if n.secure {
		site := httptest.NewUnstartedServer(nil) // for its certificate
		site.StartTLS()
		transport.TLSClientConfig, scheme = site.Client().Transport.(*http.Transport).TLSClientConfig, "https"
		opts = append(opts, nearcall.Creds(nearcall.NewTLS(&tls.Config{Certificates: site.TLS.Certificates})))
		site.Close()
		transport.TLSClientConfig.NextProtos = []string{"h2", "http/1.1"}[2-n.version:]
	}
	transport.Protocols.SetHTTP1(n.version == 1)
	transport.Protocols.SetHTTP2(n.version == 2 && n.secure)
	transport.Protocols.SetUnencryptedHTTP2(n.version == 2 && !n.secure)
	srv := nearcall.NewServer(opts...)
	testpb.RegisterTestServiceServer(srv, svc)
	pb.RegisterConformanceServiceServer(srv, lookup{})
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(lis) }()
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		srv.GracefulStop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return scheme + "://" + lis.Addr().String(), &http.Client{Transport: transport}
}

var clients = map[string][]connect.ClientOption{
	"connect proto":      nil,
	"connect JSON":       {connect.WithProtoJSON()},
	"connect gzip":       {connect.WithSendGzip()},
	"connect JSON gzip":  {connect.WithProtoJSON(), connect.WithSendGzip()},
	"gRPC-Web proto":     {connect.WithGRPCWeb()},
	"gRPC-Web JSON gzip": {connect.WithGRPCWeb(), connect.WithProtoJSON(), connect.WithSendGzip()},
	overHTTP2:            {connect.WithGRPC()},
	overHTTP2 + " gzip":  {connect.WithGRPC(), connect.WithSendGzip()},
}

const overHTTP2 = "gRPC proto" // a client that needs it

// each runs f with each client over each network whose version of HTTP is not below least. Each has
// a connection to itself: the first request decides whether it is one of gRPC alone.
func each(t *testing.T, least int, f func(t *testing.T, url string, h *http.Client, opts []connect.ClientOption)) {
	for where, n := range networks {
		for name, opts := range clients {
			if n.version < least || n.version == 1 && (name == overHTTP2 || name == overHTTP2+" gzip") {
				continue
			}
			t.Run(where+", "+name, func(t *testing.T) {
				url, h := start(t, &service{}, n)
				f(t, url, h, opts)
			})
		}
	}
}

const root = "/grpc.testing.TestService/"

func TestUnaryCallsOfConnectGo(t *testing.T) {
	each(t, 1, func(t *testing.T, url string, h *http.Client, opts []connect.ClientOption) {
		c := connect.NewClient[testpb.SimpleRequest, testpb.SimpleResponse](h, url+root+"UnaryCall", opts...)
		req := connect.NewRequest(&testpb.SimpleRequest{ResponseSize: 300_000, Payload: &testpb.Payload{Body: make([]byte, 200_000)}})
		req.Header().Add("X-A", "1")
		req.Header().Add("X-A", "2")
		req.Header().Set("X-A-Bin", connect.EncodeBinaryHeader([]byte{0, 255}))
		resp, err := c.CallUnary(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		b, err := connect.DecodeBinaryHeader(resp.Header().Get("X-Seen-Bin"))
		if len(resp.Msg.Payload.Body) != 300_000 || !slices.Equal(resp.Header().Values("X-Seen"), []string{"1", "2"}) || string(b) != "\x00\xff" || err != nil || resp.Trailer().Get("X-After") != "t" {
			t.Errorf("%v, %v", resp.Header(), resp.Trailer())
		}
		req = connect.NewRequest(&testpb.SimpleRequest{ResponseStatus: &testpb.EchoStatus{Code: int32(codes.DataLoss), Message: "näh: 100% \n"}})
		_, err = c.CallUnary(t.Context(), req)
		var e *connect.Error
		if !errors.As(err, &e) || e.Code() != connect.CodeDataLoss || e.Message() != "näh: 100% \n" || len(e.Details()) != 1 || e.Meta().Get("X-After") == "" && e.Meta().Get("Trailer-X-After") == "" {
			t.Fatalf("%v, %v", err, e.Meta())
		}
		if d, err := e.Details()[0].Value(); err != nil || d.(*errdetails.BadRequest).FieldViolations[0].Field != "f" {
			t.Errorf("%v, %v", d, err)
		}
	})
}

func TestStreamsOfConnectGo(t *testing.T) {
	each(t, 1, func(t *testing.T, url string, h *http.Client, opts []connect.ClientOption) {
		out := connect.NewClient[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse](h, url+root+"StreamingOutputCall", opts...)
		for _, code := range []codes.Code{codes.OK, codes.Aborted} {
			ask := &testpb.StreamingOutputCallRequest{ResponseParameters: []*testpb.ResponseParameters{{Size: 3}, {Size: 200_000}, {Size: 0}}}
			if code != codes.OK {
				ask.ResponseStatus = &testpb.EchoStatus{Code: int32(code), Message: "no"}
			}
			st, err := out.CallServerStream(t.Context(), connect.NewRequest(ask))
			if err != nil {
				t.Fatal(err)
			}
			n, messages := 0, 0
			for st.Receive() {
				messages++
				n += len(st.Msg().Payload.GetBody())
			}
			if n != 200_003 || messages != 3 || code == codes.OK && st.Err() != nil || code != codes.OK && connect.CodeOf(st.Err()) != connect.CodeAborted {
				t.Errorf("%d messages, %d bytes, %v", messages, n, st.Err())
			}
		}
		in := connect.NewClient[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse](h, url+root+"StreamingInputCall", opts...)
		st := in.CallClientStream(t.Context())
		for range 20 {
			if err := st.Send(&testpb.StreamingInputCallRequest{Payload: &testpb.Payload{Body: make([]byte, 50_000)}}); err != nil {
				t.Fatal(err)
			}
		}
		if sum, err := st.CloseAndReceive(); err != nil || sum.Msg.AggregatedPayloadSize != 1_000_000 {
			t.Errorf("%v, %v", sum, err)
		}
	})
}

// TestBidiStreamsOfConnectGo: over HTTP/2 the client receives before it sends more.
func TestBidiStreamsOfConnectGo(t *testing.T) {
	each(t, 2, func(t *testing.T, url string, h *http.Client, opts []connect.ClientOption) {
		c := connect.NewClient[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse](h, url+root+"FullDuplexCall", opts...)
		st := c.CallBidiStream(t.Context())
		for range 5 {
			if err := st.Send(&testpb.StreamingOutputCallRequest{Payload: &testpb.Payload{Body: make([]byte, 70_000)}}); err != nil {
				t.Fatal(err)
			}
			if m, err := st.Receive(); err != nil || len(m.Payload.GetBody()) != 70_000 {
				t.Fatal(err)
			}
		}
		if err := st.CloseRequest(); err != nil {
			t.Error(err)
		}
		if _, err := st.Receive(); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
		_ = st.CloseResponse()
	})
}

func TestGetsOfConnectGo(t *testing.T) {
	url, h := start(t, &service{}, network{version: 2})
	for name, opts := range clients {
		if name == overHTTP2 || name == overHTTP2+" gzip" {
			continue
		}
		opts = append(slices.Clone(opts), connect.WithHTTPGet(), connect.WithIdempotency(connect.IdempotencyNoSideEffects))
		c := connect.NewClient[pb.IdempotentUnaryRequest, pb.IdempotentUnaryResponse](h, url+"/connectrpc.conformance.v1.ConformanceService/IdempotentUnary", opts...)
		want := make([]byte, 1000)
		resp, err := c.CallUnary(t.Context(), connect.NewRequest(&pb.IdempotentUnaryRequest{ResponseDefinition: &pb.UnaryResponseDefinition{Response: &pb.UnaryResponseDefinition_ResponseData{ResponseData: want}}}))
		if err != nil || len(resp.Msg.Payload.Data) != len(want) {
			t.Errorf("%s: %v, %v", name, resp, err)
		}
	}
}

// waiting starts a service, and returns how to make a call that waits until its context ends.
func waiting(t *testing.T, opts []connect.ClientOption) (svc *service, call func(context.Context) error) {
	t.Helper()
	svc = &service{runs: make(chan struct{}, 20), waits: make(chan error, 20)}
	url, h := start(t, svc, network{version: 2})
	c := connect.NewClient[testpb.SimpleRequest, testpb.SimpleResponse](h, url+root+"UnaryCall", opts...)
	return svc, func(ctx context.Context) error {
		_, err := c.CallUnary(ctx, connect.NewRequest(&testpb.SimpleRequest{ResponseSize: -1}))
		return err
	}
}

func TestADeadlineOfConnectGoReachesTheHandler(t *testing.T) {
	for name, opts := range clients {
		svc, call := waiting(t, opts)
		reached := false
		for timeout := 50 * time.Millisecond; timeout < time.Minute && !reached; timeout *= 2 {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			if err := call(ctx); connect.CodeOf(err) != connect.CodeDeadlineExceeded {
				t.Errorf("%s: the client gets %v", name, err)
			}
			cancel()
			select {
			case <-svc.waits: // an error, whichever timer was first
				reached = true
			case <-time.After(timeout): // the deadline passed before the handler ran
			}
		}
		if !reached {
			t.Errorf("%s: no call reached its handler", name)
		}
	}
}

func TestACancelledCallOfConnectGoCancelsItsHandler(t *testing.T) {
	for name, opts := range clients {
		svc, call := waiting(t, opts)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-svc.runs
			cancel()
		}()
		err := call(ctx)
		if why := <-svc.waits; connect.CodeOf(err) != connect.CodeCanceled || !errors.Is(why, context.Canceled) {
			t.Errorf("%s: the client gets %v, the handler %v", name, err, why)
		}
	}
}
