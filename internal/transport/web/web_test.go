package web_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/grpclog"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/leak"
)

func TestMain(m *testing.M) {
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(logged, io.Discard, os.Stderr)) // before anything logs, as grpclog demands
	leak.Main(m)
}

// logged gets all lines of the log.
var logged = new(lines)

type lines struct {
	mu  sync.Mutex
	all strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(b)
}

// with returns the lines that contain text.
func (l *lines) with(text string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.all.String()) {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// A service is the service of the tests. Its fields, if set, replace its methods.
type service struct {
	testpb.UnimplementedTestServiceServer
	unary  func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error)
	output func(*testpb.StreamingOutputCallRequest, grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error
	input  func(grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]) error
	bidi   func(grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error
}

func (s *service) UnaryCall(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	if s.unary != nil {
		return s.unary(ctx, in)
	}
	return &testpb.SimpleResponse{Payload: in.Payload}, nil
}

func (s *service) StreamingOutputCall(in *testpb.StreamingOutputCallRequest, out grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	if s.output != nil {
		return s.output(in, out)
	}
	for _, p := range in.ResponseParameters {
		if err := out.Send(&testpb.StreamingOutputCallResponse{Payload: body(int(p.Size))}); err != nil {
			return err
		}
	}
	return nil
}

func (s *service) StreamingInputCall(in grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]) error {
	if s.input != nil {
		return s.input(in)
	}
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
	if s.bidi != nil {
		return s.bidi(both)
	}
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

func body(n int) *testpb.Payload { return &testpb.Payload{Body: make([]byte, n)} }

// A site is a server of service, with an HTTP client.
type site struct {
	*testing.T
	server *nearcall.Server
	client *http.Client
	url    string // of the service, with a slash at its end
	lis    net.Listener
}

const path = "/grpc.testing.TestService/"

// start starts a server on the loopback interface, until the end of the test.
func start(t *testing.T, svc *service, opts ...nearcall.ServerOption) *site {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &site{T: t, server: nearcall.NewServer(opts...), lis: lis, url: "http://" + lis.Addr().String() + path}
	testpb.RegisterTestServiceServer(s.server, svc)
	ended := make(chan error, 1)
	go func() { ended <- s.server.Serve(lis) }()
	transport := &http.Transport{DisableCompression: true}
	s.client = &http.Client{Transport: transport}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		s.server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

// An answer is a response that was read.
type answer struct {
	code   int
	header http.Header
	body   string
}

// do sends a request. header has names and values in turn.
func (s *site) do(method, url, body string, header ...string) answer {
	s.Helper()
	req, err := http.NewRequestWithContext(s.Context(), method, url, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		} else {
			req.Header.Add(header[i], header[i+1])
		}
	}
	resp, err := s.client.Do(req)
	if err != nil {
		s.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(b)}
}

// post calls a method of the service with JSON, as curl does.
func (s *site) post(method, body string, header ...string) answer {
	s.Helper()
	return s.do("POST", s.url+method, body, append([]string{"Content-Type", "application/json"}, header...)...)
}

// want fails the test unless the answer has this code and its body contains text.
func (a answer) want(t testing.TB, code int, text string) {
	t.Helper()
	if a.code != code || !strings.Contains(a.body, text) {
		t.Errorf("got %d, %q, %v; want %d and %q", a.code, a.body, a.header, code, text)
	}
}

func TestJSONIsAnsweredAsCurlSendsIt(t *testing.T) {
	s := start(t, &service{})
	a := s.post("UnaryCall", `{"payload":{"body":"aGVsbG8="}, "unknown": [1]}`)
	a.want(t, 200, `{"payload":{"body":"aGVsbG8="}}`)
	if got := a.header.Get("Content-Type"); got != "application/json" {
		t.Errorf("the content type is %q", got)
	}
	s.post("UnaryCall", `{}`, "Content-Type", "application/json; charset=utf-8").want(t, 200, "{}")
	s.post("UnaryCall", `{"payload": 7}`).want(t, 400, "no JSON of grpc.testing.SimpleRequest")
	s.post("UnaryCall", ``).want(t, 400, "nothing was sent")
	s.post("NoSuchMethod", `{}`).want(t, 404, `"code":"unimplemented"`)
	s.post("StreamingOutputCall", `{}`).want(t, 415, "is a streaming method")
	s.do("GET", s.url, "").want(t, 404, "this is a gRPC server")
	s.do("GET", s.url+"UnaryCall", "").want(t, 405, "this is a gRPC server")
}
