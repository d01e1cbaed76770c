package web_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/leak"
)

// mounted starts an HTTP server of the program, with wrap as its middleware, until the end of the
// test. The site's listener is that server's.
func mounted(t *testing.T, svc *service, secure bool, wrap func(http.Handler) http.Handler, opts ...nearcall.ServerOption) (*site, *httptest.Server) {
	t.Helper()
	s := &site{T: t, server: nearcall.NewServer(opts...)}
	testpb.RegisterTestServiceServer(s.server, svc)
	var h http.Handler = s.server
	if wrap != nil {
		h = wrap(h)
	}
	mux := http.NewServeMux()
	mux.Handle(path, h)
	mux.Handle("/below/", http.StripPrefix("/below", h))
	web := httptest.NewUnstartedServer(mux)
	web.Config.Protocols = new(http.Protocols)
	web.Config.Protocols.SetHTTP1(true)
	web.Config.Protocols.SetHTTP2(true)
	web.Config.Protocols.SetUnencryptedHTTP2(true)
	web.Config.HTTP2 = &http.HTTP2Config{MaxEncoderHeaderTableSize: 1}
	if secure {
		web.EnableHTTP2 = true
		web.StartTLS()
	} else {
		web.Start()
	}
	s.lis, s.url = web.Listener, web.URL+path
	t.Cleanup(func() {
		s.server.Stop()
		web.Close()
	})
	return s, web
}

// TestServeHTTPServesAll: by every protocol, over both versions of HTTP, with and without TLS.
func TestServeHTTPServesAll(t *testing.T) {
	for name, secure := range map[string]bool{"plain": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			auths := make(map[string]int)
			svc := &service{unary: func(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
				p, _ := peer.FromContext(ctx)
				mu.Lock()
				defer mu.Unlock()
				auths[p.AuthInfo.AuthType()]++
				if a, ok := p.Addr.(*net.TCPAddr); !ok || !a.IP.IsLoopback() || p.LocalAddr == nil {
					t.Errorf("the peer is %v", p)
				}
				return &testpb.SimpleResponse{Payload: in.Payload}, nil
			}}
			s, web := mounted(t, svc, secure, nil)
			mine, auth := insecure.NewCredentials(), "insecure"
			config := &tls.Config{}
			if secure {
				config = web.Client().Transport.(*http.Transport).TLSClientConfig
				mine, auth = credentials.NewTLS(config), "tls"
			}
			s.checkGRPC(mine)
			s.over(1, config.RootCAs).checkCalls(1)
			s.over(2, config.RootCAs).checkCalls(2)
			if reply, trailer := s.grpcCall(""); reply != wrap(0, "") || trailer.Get("Grpc-Status") != "0" {
				t.Errorf("%q, %v", reply, trailer)
			}
			s.do("POST", strings.Replace(s.url, path, "/below"+path, 1)+"UnaryCall", "{}", "Content-Type", "application/json").want(t, 200, "{}")
			if len(auths) != 1 || auths[auth] == 0 {
				t.Errorf("%v, want %s", auths, auth)
			}
		})
	}
}

// TestServeHTTPSendsTheHeaderThatGRPCSends: clients find each field in the metadata of the call.
func TestServeHTTPSendsTheHeaderThatGRPCSends(t *testing.T) {
	theirs := grpc.NewServer()
	testpb.RegisterTestServiceServer(theirs, failing())
	ours := nearcall.NewServer()
	defer ours.Stop()
	testpb.RegisterTestServiceServer(ours, failing())
	answer := func(h http.Handler, request string) (header, trailer http.Header) {
		r := httptest.NewRequest("POST", path+"UnaryCall", strings.NewReader(request))
		r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/2.0", 2, 0
		r.Header.Set("Content-Type", "application/grpc")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		got := w.Result()
		return got.Header, got.Trailer
	}
	for name, request := range map[string]string{
		"a reply":  wrap(0, encode(t, &testpb.SimpleRequest{ResponseSize: 1})),
		"an error": wrap(0, ""),
	} {
		header, trailer := answer(ours, request)
		wantHeader, wantTrailer := answer(theirs, request)
		if !reflect.DeepEqual(header, wantHeader) || len(header["X-Seen"]) != 1 {
			t.Errorf("%s has the header %v, want %v", name, header, wantHeader)
		}
		if !reflect.DeepEqual(trailer, wantTrailer) {
			t.Errorf("%s has the trailer %v, want %v", name, trailer, wantTrailer)
		}
	}
}

// TestServeHTTPFollowsTheServersRules: of origins and of other clients. The answer says why.
func TestServeHTTPFollowsTheServersRules(t *testing.T) {
	s, _ := mounted(t, &service{}, false, nil, nearcall.OtherClients(nearcall.GRPCClients))
	s.over(1, nil).post("UnaryCall", "{}").want(t, 415, "OtherClients")
	s.over(2, nil).post("UnaryCall", "{}").want(t, 415, "OtherClients")
	s.post("UnaryCall", "{}", "Origin", "https://other.example").want(t, 403, "WebOrigins")
	s.checkGRPC(insecure.NewCredentials())
	s, _ = mounted(t, &service{}, false, nil, nearcall.OtherClients(nearcall.WebClients), nearcall.WebOrigins("https://shop.example"))
	if a := s.over(2, nil).post("UnaryCall", "{}", "Origin", "https://shop.example"); a.code != 200 || a.header.Get("Access-Control-Allow-Origin") != "https://shop.example" {
		t.Error(a)
	}
	if _, trailer := s.grpcCall(""); trailer.Get("Grpc-Status") != "12" || !strings.Contains(trailer.Get("Grpc-Message"), "OtherClients") {
		t.Error(trailer)
	}
	s.over(1, nil).do("POST", s.url+"UnaryCall", wrap(0, ""), "Content-Type", "application/grpc").want(t, 415, "")
}

// hides is middleware whose ResponseWriter hides that it can flush, unless it has Unwrap.
type hides struct{ http.ResponseWriter }

type shows struct{ hides }

func (s shows) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// TestServeHTTPNeedsToFlush: through middleware that wraps the ResponseWriter.
func TestServeHTTPNeedsToFlush(t *testing.T) {
	for _, unwraps := range []bool{true, false} {
		s, _ := mounted(t, &service{}, false, func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if unwraps {
					h.ServeHTTP(shows{hides{w}}, r)
				} else {
					h.ServeHTTP(hides{w}, r)
				}
			})
		})
		if s.over(2, nil); unwraps {
			s.checkCalls(2)
			s.checkGRPC(insecure.NewCredentials())
			continue
		}
		s.post("UnaryCall", "{}").want(t, 200, "{}")
		s.do("POST", s.url+"UnaryCall", wrap(0, ""), "Content-Type", "application/grpc-web").want(t, 500, "Unwrap")
		if _, trailer := s.grpcCall(""); trailer.Get("Grpc-Status") != "13" || !strings.Contains(trailer.Get("Grpc-Message"), "Unwrap") {
			t.Error(trailer)
		}
	}
}

// TestServeHTTPEndsWithTheServer: GracefulStop waits for calls of all protocols, Stop cancels them,
// and later calls fail with Unavailable.
func TestServeHTTPEndsWithTheServer(t *testing.T) {
	for _, graceful := range []bool{true, false} {
		running, goOn := make(chan struct{}), make(chan struct{})
		svc := &service{unary: func(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			running <- struct{}{}
			select {
			case <-goOn:
				return &testpb.SimpleResponse{Payload: in.Payload}, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}}
		s, _ := mounted(t, svc, false, nil)
		conn, err := grpc.NewClient(s.lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		client := testpb.NewTestServiceClient(conn)
		code, want := 503, codes.Unavailable
		if graceful {
			code, want = 200, codes.OK
		}
		var calls sync.WaitGroup
		calls.Go(func() {
			if _, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{}); status.Code(err) != want {
				t.Errorf("%v, want %v", err, want)
			}
		})
		for _, version := range []int{1, 2} {
			over := *s
			over.over(version, nil)
			calls.Go(func() { over.post("UnaryCall", "{}").want(t, code, "") })
		}
		for range 3 {
			<-running
		}
		var stopped sync.WaitGroup
		if graceful {
			stopped.Go(s.server.GracefulStop)
			leak.AwaitBlocked(t, "", "server.(*Server).GracefulStop(")
			close(goOn)
		} else {
			stopped.Go(s.server.Stop)
		}
		calls.Wait()
		stopped.Wait()
		s.over(2, nil).post("UnaryCall", "{}").want(t, 503, "stopping")
		if _, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{}); status.Code(err) != codes.Unavailable {
			t.Errorf("%v after the end", err)
		}
	}
}

// TestStopOfServeHTTPDoesNotWaitForAClientThatReadsNothing: a message waits for the client.
func TestStopOfServeHTTPDoesNotWaitForAClientThatReadsNothing(t *testing.T) {
	svc := &service{output: func(_ *testpb.StreamingOutputCallRequest, out grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
		return out.Send(&testpb.StreamingOutputCallResponse{Payload: body(1 << 20)})
	}}
	s, _ := mounted(t, svc, false, nil)
	conn, err := grpc.NewClient(s.lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := testpb.NewTestServiceClient(conn).StreamingOutputCall(t.Context(), &testpb.StreamingOutputCallRequest{})
	if err != nil {
		t.Fatal(err)
	}
	leak.AwaitBlocked(t, "select", "http.(*http2serverConn).writeDataFromHandler(")
	stopped := make(chan struct{})
	go func() {
		s.server.Stop()
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-time.After(20 * time.Second):
		t.Error("Stop waits for the client")
		_ = conn.Close()
	}
	if _, err := stream.Recv(); err == nil {
		t.Error("the call goes on")
	}
}

// TestServeHTTPKeepsTheServersWriteTimeout: an answer that its client takes slowly is cut then.
func TestServeHTTPKeepsTheServersWriteTimeout(t *testing.T) {
	const size = 16 << 20 // more than sockets hold
	server := nearcall.NewServer()
	defer server.Stop()
	testpb.RegisterTestServiceServer(server, &service{unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		return &testpb.SimpleResponse{Payload: body(size)}, nil
	}})
	web := httptest.NewUnstartedServer(server)
	web.Config.WriteTimeout = 3 * time.Second // begins before the handler, which a busy machine delays
	web.Start()
	defer web.Close()
	resp, err := http.Post(web.URL+path+"UnaryCall", "application/proto", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b := make([]byte, size/64)
	for n := 0; ; time.Sleep(100 * time.Millisecond) {
		got, err := io.ReadFull(resp.Body, b)
		if n += got; err == nil {
			continue
		}
		if err == io.EOF || n >= size {
			t.Errorf("%d bytes and %v came", n, err)
		}
		return
	}
}

// TestServeHTTPDoesNotDecodeMethodsOfGRPC: otherwise clients could evade the rules of a proxy that does
// not decode paths. grpc-go does not decode them on its connections.
func TestServeHTTPDoesNotDecodeMethodsOfGRPC(t *testing.T) {
	s, _ := mounted(t, &service{}, false, nil)
	s.over(2, nil)
	whole := s.url
	for _, c := range []struct{ path, want string }{
		{whole, "0"},
		{strings.Replace(whole, "Service", "%53ervice", 1), "12"},
		{whole + "%55naryCall?", "12"}, // and UnaryCall as a query
		{whole + "UnaryCall?", "12"},
	} {
		s.url = c.path
		if _, trailer := s.grpcCall(""); trailer.Get("Grpc-Status") != c.want {
			t.Errorf("%s: %v, want status %s", c.path, trailer, c.want)
		}
	}
}

// TestARequestLastsAsLongAsItsHandler: so the HTTP server's limit of requests bounds handlers,
// also if clients reset their streams at once.
func TestARequestLastsAsLongAsItsHandler(t *testing.T) {
	entered, goOn, left := make(chan struct{}), make(chan struct{}), make(chan struct{})
	svc := &service{unary: func(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		close(entered)
		<-goOn
		return nil, ctx.Err()
	}}
	var returned sync.WaitGroup
	s, _ := mounted(t, svc, false, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			returned.Add(1)
			defer returned.Done()
			h.ServeHTTP(w, r)
			select {
			case <-goOn:
			default:
				t.Error("ServeHTTP has returned before the handler")
			}
			close(left)
		})
	})
	s.over(2, nil)
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "POST", s.url+"UnaryCall", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	go func() {
		<-entered
		cancel()
	}()
	if resp, err := s.client.Do(req); err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		t.Error("the call was not cancelled")
	}
	leak.AwaitBlocked(t, "chan receive", "web.(*exchange).end(")
	close(goOn)
	<-left
	returned.Wait()
}

// TestCallsOfGRPCThatAreResetCountUntilTheirHandlersReturn: a client that opens and resets calls
// does not run more handlers than the HTTP server allows requests.
func TestCallsOfGRPCThatAreResetCountUntilTheirHandlersReturn(t *testing.T) {
	const most, calls = 10, 60
	var running, seen atomic.Int32
	release := make(chan struct{})
	svc := &service{unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		if n := running.Add(1); n > seen.Load() {
			seen.Store(n)
		}
		defer running.Add(-1)
		<-release
		return &testpb.SimpleResponse{}, nil
	}}
	s, web := mounted(t, svc, false, nil)
	defer close(release)
	web.Config.HTTP2.MaxConcurrentStreams = most
	c := s.frames()
	defer c.Close()
	_, _ = io.WriteString(c, preface+settings)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			if kind, _, _ := c.next(t); kind == 7 || kind == 0xff {
				return // GOAWAY: the client has opened too many
			}
		}
	}()
	for i := range uint32(calls) {
		_, _ = io.WriteString(c, frame(1, 4, 2*i+1, block("application/grpc"))+frame(0, 1, 2*i+1, wrap(0, "")))
		for begun := time.Now(); running.Load() <= int32(min(i, most-1)) && time.Since(begun) < time.Second; {
			time.Sleep(time.Millisecond) // so that the handler has begun
		}
		_, _ = io.WriteString(c, frame(3, 0, 2*i+1, "\x00\x00\x00\x08"))
	}
	<-ended
	if n := seen.Load(); n < 2 || n > most {
		t.Errorf("%d handlers ran at a time, want %d at most", n, most)
	}
}

// TestServeHTTPTellsWhoseLimitABodyExceeds: middleware that limits bodies is no client that leaves.
func TestServeHTTPTellsWhoseLimitABodyExceeds(t *testing.T) {
	s, _ := mounted(t, &service{}, false, func(h http.Handler) http.Handler { return http.MaxBytesHandler(h, 10) })
	for _, version := range []int{1, 2} {
		s.over(version, nil).post("UnaryCall", `{"payload":{"body":"AAAA"}}`).want(t, 500, "request body too large")
	}
}
