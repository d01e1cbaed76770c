package web_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/loop"
)

// record is a stats handler that remembers the kinds of events.
type record struct {
	mu     sync.Mutex
	events []string
	over   chan struct{} // gets an element at the end of a call
	ended  chan struct{} // closed with the connection
}

func (r *record) add(event string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, event)
}

func (r *record) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	r.add(info.FullMethodName)
	return ctx
}

func (r *record) HandleRPC(_ context.Context, s stats.RPCStats) {
	switch s := s.(type) {
	case *stats.InPayload:
		r.add("in")
	case *stats.OutPayload:
		r.add("out")
	case *stats.End:
		r.add("end " + status.Code(s.Error).String())
		r.over <- struct{}{}
	}
}

func (r *record) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (r *record) HandleConn(_ context.Context, s stats.ConnStats) {
	switch s.(type) {
	case *stats.ConnBegin:
		r.add("connected")
	case *stats.ConnEnd:
		close(r.ended)
	}
}

// TestWebCallsPassTheServersRules: interceptors, stats handlers and the peer are those of
// all calls.
func TestWebCallsPassTheServersRules(t *testing.T) {
	r := &record{over: make(chan struct{}, 2), ended: make(chan struct{})}
	guard := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		p, _ := peer.FromContext(ctx)
		if p.Addr == nil || p.AuthInfo.AuthType() != "insecure" || len(md[":authority"]) != 1 || !strings.HasPrefix(md["user-agent"][0], "Go-http") || len(md["connection"]) > 0 {
			t.Errorf("%v, %v", p, md)
		}
		if len(md["authorization"]) == 0 {
			return nil, status.Error(codes.Unauthenticated, "who are you?")
		}
		return h(ctx, req)
	}
	s := start(t, &service{}, nearcall.UnaryInterceptor(guard), nearcall.StatsHandler(r))
	conn := s.dial()
	in := bufio.NewReader(conn)
	call := func(code int, text string, header ...string) {
		_, _ = io.WriteString(conn, head("UnaryCall", append(header, "User-Agent: Go-http", "Content-Length: 2")...)+"{}")
		readAnswer(t, in).want(t, code, text)
		<-r.over // reported after the answer was sent
	}
	call(401, "who are you?")
	call(200, "{}", "Authorization: Bearer x", "Keep-Alive: 300")
	s.server.GracefulStop()
	<-r.ended
	r.mu.Lock()
	defer r.mu.Unlock()
	want := "connected " + path + "UnaryCall in end Unauthenticated " + path + "UnaryCall in out end OK"
	if got := strings.Join(r.events, " "); got != want {
		t.Errorf("events: %s\nwant    %s", got, want)
	}
}

// TestHandlersOfWebCallsMayRunOnALoop: they must not block it while they wait for bytes.
func TestHandlersOfWebCallsMayRunOnALoop(t *testing.T) {
	l := loop.New()
	defer l.Close(context.Background())
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := nearcall.NewServer()
	testpb.RegisterTestServiceServer(srv.OnLoop(l), &service{})
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(lis) }()
	transport := &http.Transport{}
	s := &site{T: t, server: srv, lis: lis, url: "http://" + lis.Addr().String() + path, client: &http.Client{Transport: transport}}
	waiting := s.dial() // a call that waits for its message
	if _, err := waiting.Write([]byte(strings.Replace(head("FullDuplexCall", "Transfer-Encoding: chunked"), "json", "connect+json", 1))); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		s.post("UnaryCall", `{"payload":{"body":"AAAA"}}`).want(t, 200, "AAAA")
		a := s.do("POST", s.url+"StreamingOutputCall", wrap(0, `{"responseParameters":[{"size":100000},{"size":100000}]}`), "Content-Type", "application/connect+json")
		if parts := unwrap(t, a.body); len(parts) != 3 || parts[2].body != "{}" {
			t.Errorf("%d parts", len(parts))
		}
	}
	_ = waiting.Close()
	transport.CloseIdleConnections()
	srv.GracefulStop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
