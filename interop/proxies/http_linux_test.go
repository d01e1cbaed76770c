package proxies

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall"
)

const service = "/grpc.testing.TestService/"

// overHTTP runs a test with each proxy, over HTTP/1.1 in the clear and over HTTP/2 with TLS.
func overHTTP(t *testing.T, test func(t *testing.T, s *server, c *web)) {
	through(t, func(t *testing.T, k *kind) {
		s := serve(t, "tcp:127.0.0.1:0", allowed)
		p := k.start(t, s.address)
		for _, scheme := range []string{"http", "https"} {
			t.Run(scheme, func(t *testing.T) { test(t, s, p.web(t, scheme)) })
		}
	})
}

// A web is a client of HTTP.
type web struct {
	t         *testing.T
	base      string
	transport *http.Transport
}

func (p *proxy) web(t *testing.T, scheme string) *web {
	tr := &http.Transport{DialContext: p.dialContext, TLSClientConfig: p.cert.config(), ForceAttemptHTTP2: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &web{t, scheme + "://" + p.host(scheme), tr}
}

// request returns the answer to a POST, with fields in its header, as name and value.
func (c *web) request(ctx context.Context, method, contentType string, body io.Reader, fields ...string) *http.Response {
	c.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+service+method, body)
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	for i := 0; i < len(fields); i += 2 {
		req.Header.Set(fields[i], fields[i+1])
	}
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = resp.Body.Close() })
	if want := map[bool]int{false: 1, true: 2}[strings.HasPrefix(c.base, "https")]; resp.ProtoMajor != want {
		c.t.Errorf("the proxy answers by %s", resp.Proto)
	}
	return resp
}

// envelope frames a message of a stream, for Connect and for gRPC-Web.
func envelope(b []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), b...)
}

// open reads an envelope.
func (c *web) open(r io.Reader) (flags byte, b []byte) {
	c.t.Helper()
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		c.t.Fatal(err)
	}
	b = make([]byte, binary.BigEndian.Uint32(head[1:]))
	if _, err := io.ReadFull(r, b); err != nil {
		c.t.Fatal(err)
	}
	return head[0], b
}

func encode(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestCallsOverHTTPThroughAProxy(t *testing.T) {
	overHTTP(t, func(t *testing.T, s *server, c *web) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for len(s.begun) > 0 {
			<-s.begun
		}
		for range 100 {
			resp := c.request(ctx, "UnaryCall", "application/json", strings.NewReader(`{"payload": {"body": "aGVsbG8="}}`), "X-Forwarded-For", "192.0.2.1")
			text, err := io.ReadAll(resp.Body)
			var reply testpb.SimpleResponse
			if err != nil || resp.StatusCode != http.StatusOK || protojson.Unmarshal(text, &reply) != nil || string(reply.GetPayload().GetBody()) != "hello" {
				t.Fatalf("%s: %s, %v", resp.Status, text, err)
			}
		}
		if _, _, caller := s.seen(); caller.String() != callersAddress {
			t.Errorf("CallerOf returns %s", caller)
		}

		if n := len(s.begun); n > 10 {
			t.Errorf("the proxy makes %d connections for 100 calls", n)
		}

		large := encode(t, &testpb.SimpleRequest{Payload: payload(10_000_000)})
		resp := c.request(ctx, "UnaryCall", "application/proto", bytes.NewReader(large))
		text, err := io.ReadAll(resp.Body)
		var reply testpb.SimpleResponse
		if err != nil || resp.StatusCode != http.StatusOK || proto.Unmarshal(text, &reply) != nil || !bytes.Equal(reply.GetPayload().GetBody(), payload(10_000_000).GetBody()) {
			t.Errorf("a large message: %s, %.1000q, %v", resp.Status, text, err)
		}
	})
}

// Each message of a stream is passed on before the next one is sent.
func TestStreamsOverHTTPAreNotHeldBackByAProxy(t *testing.T) {
	overHTTP(t, func(t *testing.T, s *server, c *web) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		in := envelope(encode(t, &testpb.StreamingOutputCallRequest{ResponseParameters: []*testpb.ResponseParameters{{Size: 1}, {Size: 2}, {Size: 3}}}))
		for contentType, end := range map[string]struct {
			flags byte
			text  string
		}{
			"application/connect+proto":  {2, "{}"},
			"application/grpc-web+proto": {0x80, "grpc-status: 0\r\n"},
		} {
			resp := c.request(ctx, "StreamingOutputCall", contentType, bytes.NewReader(in))
			for i := range 3 {
				if i > 0 {
					s.next <- struct{}{}
				}
				var m testpb.StreamingOutputCallResponse
				if flags, b := c.open(resp.Body); flags != 0 || proto.Unmarshal(b, &m) != nil || len(m.GetPayload().GetBody()) != i+1 {
					t.Errorf("%s: message %d is %d, %q", contentType, i, flags, b)
				}
			}
			if flags, b := c.open(resp.Body); flags != end.flags || !strings.Contains(string(b), end.text) {
				t.Errorf("%s ends with %d, %q", contentType, flags, b)
			}
		}

		// A client stream arrives while the client sends it.
		body, send := io.Pipe()
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			for range 3 {
				_, _ = send.Write(envelope(encode(t, &testpb.StreamingInputCallRequest{Payload: payload(10)})))
				select {
				case <-s.received:
				case <-ctx.Done():
					_ = send.CloseWithError(ctx.Err())
					return
				}
			}
			_ = send.Close()
		}()
		resp := c.request(ctx, "StreamingInputCall", "application/connect+proto", body)
		var sum testpb.StreamingInputCallResponse
		if _, b := c.open(resp.Body); proto.Unmarshal(b, &sum) != nil || sum.GetAggregatedPayloadSize() != 30 {
			t.Errorf("the client stream is answered with %q", b)
		}
		<-sent
	})
}

// A server stops when its client does not receive: the proxy stores little.
func TestFlowControlOverHTTPThroughAProxy(t *testing.T) {
	overHTTP(t, func(t *testing.T, s *server, c *web) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
		defer cancel()
		const messages = 100 // of a megabyte
		s.sent.Store(0)
		var in testpb.StreamingOutputCallRequest
		for range messages {
			in.ResponseParameters = append(in.ResponseParameters, &testpb.ResponseParameters{Size: 1e6})
		}
		resp := c.request(ctx, "StreamingOutputCall", "application/connect+proto", bytes.NewReader(envelope(encode(t, &in))))
		for last := int64(-1); ctx.Err() == nil && last != s.sent.Load(); time.Sleep(500 * time.Millisecond) {
			last = s.sent.Load()
		}
		if n := s.sent.Load(); n > messages/2*1e6 {
			t.Errorf("the client has received nothing, and the server has sent %d bytes", n)
		}
		for i := range messages {
			var m testpb.StreamingOutputCallResponse
			if flags, b := c.open(resp.Body); flags != 0 || proto.Unmarshal(b, &m) != nil || len(m.GetPayload().GetBody()) != 1e6 {
				t.Fatalf("message %d is %d, of %d bytes", i, flags, len(b))
			}
		}
		if flags, b := c.open(resp.Body); flags != 2 || string(b) != "{}" {
			t.Errorf("the stream ends with %d, %q", flags, b)
		}
	})
}

// answers returns the status code and the text for a page of origin that asks for a WebSocket
// by the name host, or makes a call.
func (p *proxy) answers(t *testing.T, host, origin string) (webSocket, call int, text string) {
	t.Helper()
	config := p.cert.config()
	config.ServerName = site
	config.NextProtos = []string{"http/1.1"}
	tr := &http.Transport{DialContext: p.dialContext, TLSClientConfig: config, TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}}
	defer tr.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ask := func(method, path string, fields map[string]string) int {
		req, err := http.NewRequestWithContext(ctx, method, "https://"+p.https+path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		if method == http.MethodGet {
			req.Body, req.ContentLength = nil, 0
		}
		req.Host = host
		for name, value := range fields {
			req.Header.Set(name, value)
		}
		if origin != "" {
			req.Header.Set("Origin", origin)
		}
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode == http.StatusForbidden {
			b, _ := io.ReadAll(resp.Body)
			text += string(b)
		}
		return resp.StatusCode
	}
	webSocket = ask(http.MethodGet, "/calls", map[string]string{
		"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
		"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol": "nearcall.v1",
	})
	call = ask(http.MethodPost, service+"UnaryCall", map[string]string{"Content-Type": "application/json"})
	return webSocket, call, text
}

// TLS ends at the proxy, so the page's origin has the scheme https, and the server's
// connection is plain TCP.
func TestWhichPagesMayCallThroughAProxy(t *testing.T) {
	through(t, func(t *testing.T, k *kind) {
		const yes, no = http.StatusSwitchingProtocols, http.StatusForbidden
		for name, server := range map[string]struct {
			target  string
			opts    []nearcall.ServerOption
			ownPage int    // the answer to a page of the site
			says    string // in it
		}{
			"TCP":                  {"tcp:127.0.0.1:0", nil, no, "is no name of this machine"},
			"TCP, with WebOrigins": {"tcp:127.0.0.1:0", []nearcall.ServerOption{allowed}, yes, ""},
			"unix socket":          {"unix:" + t.TempDir() + "/s", nil, yes, ""},
		} {
			s := serve(t, server.target, server.opts...)
			address := s.address
			if strings.HasPrefix(server.target, "unix:") {
				address = k.unix(address)
			}
			p := k.start(t, address)
			_, port, _ := strings.Cut(p.https, ":")
			own, local := site+":"+port, "localhost:"+port
			for _, page := range []struct {
				host, origin string
				want         int
				says         string
			}{
				{own, "https://" + own, server.ownPage, server.says},
				{own, "http://" + own, server.ownPage, server.says},
				{own, "", server.ownPage, server.says}, // no page, but another program
				{local, "https://" + local, yes, ""},
				{own, "https://evil.example", no, "must not make calls here"},
				{local, "https://evil.example", no, "must not make calls here"},
				{own, "https://" + site + ":1", no, "must not make calls here"},
				{own, "https://" + local, no, "must not make calls here"},
			} {
				ws, call, text := p.answers(t, page.host, page.origin)
				wantCall := map[int]int{yes: http.StatusOK, no: no}[page.want]
				if page.origin == "" {
					wantCall = http.StatusOK // a POST of a program that is no browser
				}
				if ws != page.want || call != wantCall || !strings.Contains(text, page.says) {
					t.Errorf("%s: page %q asks %q: WebSocket %d, call %d, %q; want %d, %d, %q",
						name, page.origin, page.host, ws, call, text, page.want, wantCall, page.says)
				}
			}
		}
	})
}

// The server compares the Host with the Origin of a page, which has the port.
func TestAProxyMustKeepThePortOfTheHost(t *testing.T) {
	t.Parallel()
	p := nginx.start(t, serve(t, "tcp:127.0.0.1:0", allowed).address, "$http_host", "$host")
	_, port, _ := strings.Cut(p.https, ":")
	if ws, _, text := p.answers(t, site+":"+port, "https://"+site+":"+port); ws != http.StatusForbidden {
		t.Errorf("without its port the Host is taken: %d, %q", ws, text)
	}
}
