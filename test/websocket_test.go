package test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/leak"
)

// webSocketTargets returns the targets at which a server takes WebSockets: by its own
// listeners, and by an HTTP server.
func webSocketTargets(t *testing.T, srv *nearcall.Server) map[string]string {
	t.Helper()
	tcp, ws := listen(t, "tcp:127.0.0.1:0"), listen(t, "ws://127.0.0.1:0/calls")
	start(t, srv, tcp)
	start(t, srv, ws)
	mux := http.NewServeMux()
	mux.Handle("/calls", srv.WebSockets())
	there := httptest.NewServer(mux)
	t.Cleanup(there.Close)
	return map[string]string{
		"a tcp: listener": "ws:" + strings.Replace(tcp.Target(), "tcp:", "//", 1) + "/any/path?and=query",
		"a ws: listener":  ws.Target(),
		"an HTTP server":  strings.Replace(there.URL, "http", "ws", 1) + "/calls",
	}
}

// opened is seen, and also stores the request of the last call's WebSocket.
func opened(r **http.Request, p *peer.Peer, md *metadata.MD) echo {
	inner := seen(p, md)
	return echo{unary: func(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		*r, _ = nearcall.WebSocketRequest(ctx)
		return inner.unary(ctx, in)
	}}
}

func TestCallsOverWebSocket(t *testing.T) {
	var r *http.Request
	var p peer.Peer
	var md metadata.MD
	for name, target := range webSocketTargets(t, serve(t, opened(&r, &p, &md))) {
		t.Run(name, func(t *testing.T) {
			client := dial(t, target)
			wantCode(t, <-invoke(t.Context(), client), codes.OK)
			if p.AuthInfo.AuthType() != "insecure" || credentials.CheckSecurityLevel(p.AuthInfo, credentials.PrivacyAndIntegrity) == nil {
				t.Fatalf("the handler finds %#v", p.AuthInfo)
			}
			if r == nil || !strings.HasSuffix(target, r.Host+r.URL.String()) || r.RemoteAddr != p.Addr.String() || r.TLS != nil || r.Context().Err() != nil {
				t.Errorf("the request is %+v", r)
			}
			if got := md[":authority"]; len(got) != 1 || !strings.HasPrefix(strings.TrimPrefix(target, "ws://"), got[0]) {
				t.Errorf("the authority is %q", got)
			}
			if err := callAll(t.Context(), client); err != nil {
				t.Error(err)
			}
			big := strings.Repeat("x", 3<<20)
			reply, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: &testpb.Payload{Body: []byte(big)}})
			wantCode(t, err, codes.OK)
			_ = reply
		})
	}
}

// A wss: target is verified as HTTPS is. Without credentials the system's certificates count.
func TestCallsOverSecureWebSocket(t *testing.T) {
	certs := newCertificates(t)
	var r *http.Request
	var p peer.Peer
	var md metadata.MD
	config := certs.server(certs.roots)
	config.NextProtos = nil
	srv := serve(t, opened(&r, &p, &md), nearcall.Creds(nearcall.NewTLS(config)))
	lis, tcp := listen(t, "wss://127.0.0.1:0/calls"), listen(t, "tcp:127.0.0.1:0")
	start(t, srv, lis)
	start(t, srv, tcp)
	client := nearcall.NewTLS(certs.client(&certs.me))
	for _, target := range []string{lis.Target(), "wss:" + strings.Replace(tcp.Target(), "tcp:", "//", 1), tcp.Target()} {
		p, r = peer.Peer{}, nil
		wantCode(t, <-invoke(t.Context(), dial(t, target, nearcall.WithTransportCredentials(client))), codes.OK)
		if (r == nil) != (target == tcp.Target()) || r != nil && (r.TLS == nil || r.TLS.PeerCertificates[0].Subject.CommonName != "alice") {
			t.Errorf("%s: the request is %+v", target, r)
		}
		if info, ok := p.AuthInfo.(credentials.TLSInfo); !ok || info.State.PeerCertificates[0].Subject.CommonName != "alice" {
			t.Errorf("%s: the handler finds %#v", target, p.AuthInfo)
		}
		if err := credentials.CheckSecurityLevel(p.AuthInfo, credentials.PrivacyAndIntegrity); err != nil {
			t.Error(err)
		}
	}
	err := <-invoke(t.Context(), dial(t, lis.Target()))
	wantCode(t, err, codes.Unavailable)
	if !strings.Contains(err.Error(), "failed to verify certificate") {
		t.Errorf("a certificate that nobody has signed: %v", err)
	}
}

func TestTargetsOfWebSockets(t *testing.T) {
	certs := newCertificates(t)
	grpcTLS := nearcall.WithTransportCredentials(credentials.NewTLS(certs.client(nil)))
	ours := nearcall.WithTransportCredentials(nearcall.NewTLS(certs.client(nil)))
	for _, c := range []struct {
		target, hint string
		opt          nearcall.DialOption
	}{
		{"ws:", "host is missing", nil},
		{"ws://", "host is missing", nil},
		{"ws:host:1", "host is missing", nil},
		{"ws:///path", "host is missing", nil},
		{"ws://:80/", "host is missing", nil},
		{"wss://:443/", "host is missing", nil},
		{"ws://host:x/", "ws://HOST:PORT/PATH", nil},
		{"ws://host:70000/", "malformed address", nil},
		{"ws://me@host:1/", "user name", nil},
		{"ws://host:1/#part", "fragment", nil},
		{"ws://host:1/", "transport security", nil},
		{"ws://host:1/", `wss://host:1/`, ours},
		{"ws://host:1/", `wss://host:1/`, grpcTLS},
		{"ws://host:1/", `wss://host:1/`, nearcall.WithTransportCredentials(newChecking("insecure"))},
		{"wss://host:1/", "nearcall.NewTLS", grpcTLS},
		{"wss://host:1/", "nearcall.NewTLS", nearcall.WithTransportCredentials(insecureCreds())},
	} {
		conn, err := nearcall.NewClient(c.target, c.opt)
		if err == nil {
			_ = conn.Close()
			t.Errorf("NewClient(%q) did not fail", c.target)
		} else if !strings.Contains(err.Error(), c.hint) {
			t.Errorf("NewClient(%q): %q does not mention %q", c.target, err, c.hint)
		}
	}
	for _, target := range []string{"ws://host", "wss://host", "WSS://host:8443/a%20b?c=d", "ws://[::1]:80"} {
		conn, err := nearcall.NewClient(target, nearcall.WithTransportCredentials(nil))
		if err != nil && !strings.Contains(err.Error(), "transport security") {
			t.Errorf("NewClient(%q): %v", target, err)
		}
		if err == nil {
			_ = conn.Close()
		}
	}
	if lis, err := nearcall.Listen("ws://127.0.0.1:0/?query"); err == nil {
		_ = lis.Close()
		t.Error("a listener takes a query")
	}
	lis := listen(t, "wss://127.0.0.1:0/")
	if err := nearcall.NewServer().Serve(lis); err == nil || !strings.Contains(err.Error(), "Creds") {
		t.Errorf("a wss: listener without credentials: %v", err)
	}
}

// asks sends a request for a WebSocket and returns the answer.
func asks(t *testing.T, target string, change func(http.Header)) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, strings.Replace(target, "ws", "http", 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range map[string]string{
		"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
		"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol": "nearcall.v1",
	} {
		req.Header.Set(key, value)
	}
	change(req.Header)
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

func TestRequestsForWebSocketsThatAreRefused(t *testing.T) {
	for name, target := range webSocketTargets(t, serve(t, echo{}, nearcall.WebOrigins("https://shop.example"))) {
		for what, c := range map[string]struct {
			change func(http.Header)
			code   int
			says   string
		}{
			"nothing wrong":        {func(http.Header) {}, 101, ""},
			"a page of its own":    {func(h http.Header) { h.Set("Origin", "http://"+strings.Split(target, "/")[2]) }, 101, ""},
			"an allowed page":      {func(h http.Header) { h.Set("Origin", "https://shop.example") }, 101, ""},
			"another page":         {func(h http.Header) { h.Set("Origin", "https://evil.example") }, 403, "WebOrigins"},
			"another subprotocol":  {func(h http.Header) { h.Set("Sec-WebSocket-Protocol", "chat, mqtt") }, 400, "nearcall.v1"},
			"one of several":       {func(h http.Header) { h.Set("Sec-WebSocket-Protocol", "chat, nearcall.v1") }, 101, ""},
			"no subprotocol":       {func(h http.Header) { h.Del("Sec-WebSocket-Protocol") }, 400, "nearcall.v1"},
			"an old version":       {func(h http.Header) { h.Set("Sec-WebSocket-Version", "8") }, 426, "version 13"},
			"a short key":          {func(h http.Header) { h.Set("Sec-WebSocket-Key", "c2hvcnQ=") }, 400, "16 bytes"},
			"a proxy that forgets": {func(h http.Header) { h.Set("Connection", "keep-alive") }, 426, "proxy"},
		} {
			resp := asks(t, target, c.change)
			var body []byte
			if resp.StatusCode != http.StatusSwitchingProtocols {
				body, _ = io.ReadAll(resp.Body)
			} else if got := resp.Header.Get("Sec-WebSocket-Protocol"); got != "nearcall.v1" {
				t.Errorf("%s, %s: the subprotocol is %q", name, what, got)
			}
			if resp.StatusCode != c.code || !strings.Contains(string(body), c.says) {
				t.Errorf("%s, %s: %s: %s, want %d and %q", name, what, resp.Status, body, c.code, c.says)
			}
			if c.code == 426 && resp.Header.Get("Sec-WebSocket-Version") != "13" {
				t.Errorf("%s, %s: the answer's header is %v", name, what, resp.Header)
			}
		}
	}
}

// Browsers send the user's cookies with any page's request for a WebSocket.
func TestOnlyNamedOriginsBringCookiesOverWebSocket(t *testing.T) {
	var r *http.Request
	var p peer.Peer
	var md metadata.MD
	srv := serve(t, opened(&r, &p, &md), nearcall.WebOrigins("*", "https://shop.example"))
	for name, target := range webSocketTargets(t, srv) {
		host := strings.Split(target, "/")[2]
		for origin, cookie := range map[string]string{"": "id=7", "http://" + host: "id=7", "https://shop.example": "id=7", "https://evil.example": "", "null": ""} {
			client := dial(t, "ws://"+host+"/calls", nearcall.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
				return &pageConn{Conn: conn, fields: "Cookie: id=7\r\nAuthorization: Basic eDp5\r\nOrigin: " + origin + "\r\n"}, err
			}))
			wantCode(t, <-invoke(t.Context(), client), codes.OK)
			h := r.Header
			if h.Get("Cookie") != cookie || (h.Get("Authorization") == "") != (cookie == "") || h.Get("Origin") != origin {
				t.Errorf("%s, a page of %q: the handler gets %v", name, origin, h)
			}
		}
	}
}

// A pageConn adds fields to the header of the request for a WebSocket.
type pageConn struct {
	net.Conn
	fields string
}

func (c *pageConn) Write(b []byte) (int, error) {
	if c.fields == "" {
		return c.Conn.Write(b)
	}
	fields := c.fields
	c.fields = ""
	with := strings.Replace(string(b), "\r\n", "\r\n"+fields, 1)
	if _, err := io.WriteString(c.Conn, with); err != nil {
		return 0, err
	}
	return len(b), nil
}

func TestWherePathsOfWebSocketsCount(t *testing.T) {
	lis, tcp := listen(t, "ws://127.0.0.1:0/calls"), listen(t, "tcp:127.0.0.1:0")
	srv := serve(t, echo{}, nearcall.OtherClients(nearcall.GRPCClients))
	start(t, srv, lis)
	start(t, srv, tcp)
	err := <-invoke(t.Context(), dial(t, strings.Replace(lis.Target(), "/calls", "/other", 1)))
	wantCode(t, err, codes.Unavailable)
	if !strings.Contains(err.Error(), "404 Not Found") || !strings.Contains(err.Error(), "takes WebSockets at /calls") {
		t.Errorf("another path: %v", err)
	}
	// Without web clients only listeners of ws: targets take WebSockets.
	wantCode(t, <-invoke(t.Context(), dial(t, lis.Target())), codes.OK)
	err = <-invoke(t.Context(), dial(t, "ws:"+strings.Replace(tcp.Target(), "tcp:", "//", 1)))
	wantCode(t, err, codes.Unavailable)
	if !strings.Contains(err.Error(), "505") {
		t.Errorf("a tcp: listener: %v", err)
	}
	resp, err := http.Post(strings.Replace(lis.Target(), "ws:", "http:", 1), "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusUpgradeRequired {
		t.Errorf("a call over HTTP: %s", resp.Status)
	}
	// The other clients of a ws: listener are those of a tcp: listener.
	wantCode(t, <-invoke(t.Context(), dial(t, strings.Replace(strings.TrimSuffix(lis.Target(), "/calls"), "ws://", "tcp:", 1))), codes.OK)
}

func TestAStoppedServerOpensNoWebSockets(t *testing.T) {
	srv := serve(t, echo{})
	there := httptest.NewServer(srv.WebSockets())
	defer there.Close()
	target := strings.Replace(there.URL, "http", "ws", 1)
	client := dial(t, target)
	wantCode(t, <-invoke(t.Context(), client), codes.OK)
	srv.GracefulStop()
	if resp := asks(t, target, func(http.Header) {}); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("%s", resp.Status)
	}
	err := <-invoke(t.Context(), client)
	wantCode(t, err, codes.Unavailable)
	if !strings.Contains(err.Error(), "503") {
		t.Error(err)
	}
}

// A server that is no WebSocket server, or another one, is named in the error.
func TestServersThatRefuseAWebSocket(t *testing.T) {
	for answer, want := range map[string]string{
		"HTTP/1.1 401 Unauthorized\r\nContent-Length: 9\r\n\r\nlog in, x": `401 Unauthorized: \"log in, x\"`,
		"HTTP/1.1 204 No Content\r\n\r\n":                                 "204 No Content",
		"HTTP/1.1 101 Switching Protocols\r\n\r\n":                        "does not answer as a WebSocket server",
		"SSH-2.0-OpenSSH\r\n":                                             "does not answer the request for WebSocket as an HTTP/1.1 server",
		"":                                                                "EOF",
	} {
		conn, err := nearcall.NewClient("ws://localhost:1/", nearcall.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			near, far := net.Pipe()
			go func() {
				_, _ = http.ReadRequest(bufio.NewReader(far))
				_, _ = io.WriteString(far, answer)
				_ = far.Close()
			}()
			return near, nil
		}))
		if err != nil {
			t.Fatal(err)
		}
		err = <-invoke(t.Context(), testpb.NewTestServiceClient(conn))
		wantCode(t, err, codes.Unavailable)
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", answer, err, want)
		}
		_ = conn.Close()
	}
}

// A countedListener counts what its connections write, and holds it back while gate is locked.
type countedListener struct {
	net.Listener
	messages *atomic.Int64
	gate     *sync.RWMutex
}

func (l countedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return countedConn{conn, l.messages, l.gate}, nil
}

// A countedConn counts writes: over more than a bare socket, each is one message.
type countedConn struct {
	net.Conn
	messages *atomic.Int64
	gate     *sync.RWMutex
}

func (c countedConn) Write(b []byte) (int, error) {
	c.gate.RLock()
	defer c.gate.RUnlock()
	c.messages.Add(1)
	return c.Conn.Write(b)
}

// onOutPayload is a stats handler that is called for each message that was sent.
type onOutPayload func()

func (onOutPayload) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (onOutPayload) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (onOutPayload) HandleConn(context.Context, stats.ConnStats)                       {}
func (f onOutPayload) HandleRPC(_ context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.OutPayload); ok {
		f()
	}
}

// Replies that are ready at the same time go out in one message, which is what a WebSocket
// costs a browser.
func TestRepliesShareMessagesOfAWebSocket(t *testing.T) {
	const calls = 1000
	var messages, replied atomic.Int64
	var gate sync.RWMutex
	lis := listen(t, "ws://127.0.0.1:0/")
	release := make(chan struct{})
	var waiting sync.WaitGroup
	waiting.Add(calls)
	srv := serve(t, echo{unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		waiting.Done()
		<-release
		return &testpb.SimpleResponse{}, nil
	}}, nearcall.MaxConcurrentStreams(calls), nearcall.StatsHandler(onOutPayload(func() { replied.Add(1) })))
	start(t, srv, countedListener{lis, &messages, &gate})
	client := dial(t, lis.Target())
	errs := make(chan error, calls)
	for range calls {
		go func() {
			_, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{})
			errs <- err
		}()
	}
	leak.Within(t, time.Minute, "all calls have their handlers", waiting.Wait)
	gate.Lock()
	before := messages.Load()
	close(release)
	leak.Finally(t, "all replies are queued", func() bool { return replied.Load() >= calls })
	gate.Unlock()
	for range calls {
		wantCode(t, <-errs, codes.OK)
	}
	if n := messages.Load() - before; n > 20 {
		t.Errorf("%d replies came in %d messages", calls, n)
	} else {
		t.Logf("%d replies came in %d messages", calls, n)
	}
}

// What a peer sends that is no WebSocket message of nearcall's ends the connection with a
// Close frame that says why.
func TestWhatIsNoMessageClosesAWebSocket(t *testing.T) {
	lis := listen(t, "ws://127.0.0.1:0/")
	start(t, serve(t, echo{}), lis)
	for name, c := range map[string]struct {
		frame string
		code  uint16
	}{
		"text":           {"\x81\x85\x00\x00\x00\x00hello", 1003},
		"no mask":        {"\x82\x05hello", 1002},
		"other bytes":    {"\x82\x85\x00\x00\x00\x00hello", 1000}, // BYE says what is wrong
		"a giant frame":  {"\x82\xff\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", 1002},
		"the page's end": {"\x88\x82\x00\x00\x00\x00\x03\xe9", 1001},
	} {
		conn, err := net.Dial("tcp", lis.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
		fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"+
			"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: nearcall.v1\r\n\r\n%s", c.frame)
		in := bufio.NewReader(conn)
		resp, err := http.ReadResponse(in, nil)
		if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("%v, %v", resp, err)
		}
		b, err := io.ReadAll(in)
		if err != nil && !errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", name, err)
		}
		if len(b) < 4 || b[len(b)-4] != 0x88 || uint16(b[len(b)-2])<<8|uint16(b[len(b)-1]) != c.code {
			t.Errorf("%s: the server ends with %x, want a Close frame of code %d", name, b, c.code)
		}
		_ = conn.Close()
	}
}

// TestAWebSocketTakesLittleMemoryForItsRequest: a map of its header would take twenty times
// what was sent.
func TestAWebSocketTakesLittleMemoryForItsRequest(t *testing.T) {
	const conns = 50
	var fields strings.Builder
	for i := range 1_900 { // of 2,048 that are allowed
		fmt.Fprintf(&fields, "%s:\r\n", strings.ToLower(strconv.FormatInt(int64(36*36+i), 36)))
	}
	for name, target := range webSocketTargets(t, serve(t, echo{})) {
		t.Run(name, func(t *testing.T) {
			u, err := url.Parse(target)
			if err != nil {
				t.Fatal(err)
			}
			open := func() {
				conn, err := net.Dial("tcp", u.Host)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = conn.Close() })
				if _, err := io.WriteString(conn, "GET "+u.RequestURI()+" HTTP/1.1\r\nHost: "+u.Host+"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"+
					"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: nearcall.v1\r\n"+fields.String()+"\r\n"); err != nil {
					t.Fatal(err)
				}
				resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
					t.Fatalf("%v, %v", resp, err)
				}
			}
			open()
			before := leak.Heap()
			for range conns {
				open()
			}
			leak.Eventually(t, "the requests are freed", func() bool {
				return int64(leak.Heap())-int64(before) < conns*80<<10
			})
		})
	}
}
