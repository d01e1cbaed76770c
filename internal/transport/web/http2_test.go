package web_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/leak"
)

// certificate returns a certificate for 127.0.0.1 and a pool with the authority that signed it.
func certificate() (tls.Certificate, *x509.CertPool) {
	site := httptest.NewUnstartedServer(nil)
	site.StartTLS()
	defer site.Close()
	roots := x509.NewCertPool()
	roots.AddCert(site.Certificate())
	return site.TLS.Certificates[0], roots
}

// over sets the version of HTTP that the client speaks. roots are those of a server with TLS.
func (s *site) over(version int, roots *x509.CertPool) *site {
	tr := &http.Transport{DisableCompression: true, Protocols: new(http.Protocols), TLSClientConfig: &tls.Config{RootCAs: roots}}
	if version == 1 {
		tr.TLSClientConfig.NextProtos = []string{"http/1.1"}
	}
	tr.Protocols.SetHTTP1(version == 1)
	tr.Protocols.SetHTTP2(version == 2 && roots != nil)
	tr.Protocols.SetUnencryptedHTTP2(version == 2 && roots == nil)
	s.client = &http.Client{Transport: tr}
	if roots != nil {
		s.url = strings.Replace(s.url, "http:", "https:", 1)
	}
	s.Cleanup(tr.CloseIdleConnections)
	return s
}

// grpcCall makes a unary call of gRPC with an HTTP client.
func (s *site) grpcCall(body string) (reply string, trailer http.Header) {
	s.Helper()
	req, err := http.NewRequestWithContext(s.Context(), "POST", s.url+"UnaryCall", strings.NewReader(wrap(0, body)))
	if err != nil {
		s.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/grpc+proto")
	req.Header.Set("Te", "trailers")
	resp, err := s.client.Do(req)
	if err != nil {
		s.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.Fatal(err)
	}
	if len(resp.Trailer) == 0 {
		resp.Trailer = resp.Header
	}
	return string(b), resp.Trailer
}

// checkCalls makes calls by all protocols that the client speaks.
func (s *site) checkCalls(version int) {
	s.Helper()
	s.post("UnaryCall", `{"payload":{"body":"AAAA"}}`).want(s, 200, `"AAAA"`)
	s.post("UnaryCall", strings.Repeat(" ", 1<<20)+"{}").want(s, 200, "{}")
	s.do("POST", s.url+"UnaryCall", "{}", "Content-Type", "text/plain").want(s, 415, "this is a gRPC server")
	s.post("Nothing", "{}").want(s, 404, "unimplemented")
	s.do("GET", s.url+"UnaryCall", "").want(s, 405, "this is a gRPC server")
	a := s.do("POST", s.url+"StreamingOutputCall", wrap(0, `{"responseParameters":[{"size":100000},{"size":100000}]}`), "Content-Type", "application/connect+json")
	if parts := unwrap(s, a.body); len(parts) != 3 || len(parts[0].body) < 100_000 || parts[2].body != "{}" {
		s.Errorf("%d, %.100q", a.code, a.body)
	}
	a = s.do("POST", s.url+"UnaryCall", wrap(0, ""), "Content-Type", "application/grpc-web")
	if parts := unwrap(s, a.body); len(parts) != 2 || !strings.Contains(parts[1].body, "grpc-status: 0") {
		s.Errorf("%d, %q", a.code, a.body)
	}
	if version < 2 {
		return
	}
	out, in := io.Pipe() // the client sends when it has received
	req, err := http.NewRequestWithContext(s.Context(), "POST", s.url+"FullDuplexCall", out)
	if err != nil {
		s.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/connect+json")
	go func() { _, _ = io.WriteString(in, wrap(0, `{"payload":{"body":"AAAA"}}`)) }()
	resp, err := s.client.Do(req)
	if err != nil {
		s.Fatal(err)
	}
	defer resp.Body.Close()
	for range 3 {
		head := make([]byte, 5)
		if _, err := io.ReadFull(resp.Body, head); err != nil {
			s.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, resp.Body, int64(binary.BigEndian.Uint32(head[1:]))); err != nil {
			s.Fatal(err)
		}
		if _, err := io.WriteString(in, wrap(0, `{"payload":{"body":"AAAA"}}`)); err != nil {
			s.Fatal(err)
		}
	}
	_ = in.Close()
	if rest, err := io.ReadAll(resp.Body); err != nil || !strings.HasSuffix(string(rest), "{}") {
		s.Errorf("%q, %v", rest, err)
	}
}

// checkGRPC makes calls as grpc-go's client.
func (s *site) checkGRPC(creds credentials.TransportCredentials) {
	s.Helper()
	conn, err := grpc.NewClient(s.lis.Addr().String(), grpc.WithTransportCredentials(creds))
	if err != nil {
		s.Fatal(err)
	}
	defer conn.Close()
	client := testpb.NewTestServiceClient(conn)
	for range 3 {
		if reply, err := client.UnaryCall(s.Context(), &testpb.SimpleRequest{Payload: body(100_000)}); err != nil || len(reply.GetPayload().GetBody()) != 100_000 {
			s.Error(err)
		}
	}
}

// TestOnePortServesAll: Connect, JSON and gRPC-Web over HTTP/1.1 and HTTP/2, and gRPC, with each
// kind of credentials and without.
func TestOnePortServesAll(t *testing.T) {
	cert, roots := certificate()
	config := &tls.Config{Certificates: []tls.Certificate{cert}}
	for name, creds := range map[string]credentials.TransportCredentials{
		"no credentials": nil, "nearcall.NewTLS": nearcall.NewTLS(config), "credentials.NewTLS": credentials.NewTLS(config),
	} {
		t.Run(name, func(t *testing.T) {
			var opts []nearcall.ServerOption
			var trusted *x509.CertPool
			mine := insecure.NewCredentials()
			if creds != nil {
				trusted, mine = roots, credentials.NewTLS(&tls.Config{RootCAs: roots})
				opts = append(opts, nearcall.Creds(creds))
			}
			s := start(t, &service{}, opts...)
			s.checkGRPC(mine)
			s.over(2, trusted).checkCalls(2)
			s.checkGRPC(mine)
			if name != "credentials.NewTLS" { // with it a client must speak HTTP/2
				s.over(1, trusted).checkCalls(1)
			}
			if reply, trailer := s.over(2, trusted).grpcCall(""); reply != wrap(0, "") || trailer.Get("Grpc-Status") != "0" {
				t.Errorf("%q, %v", reply, trailer)
			}
		})
	}
}

// TestConnectAndGRPCShareAConnection: a client that offers HTTP/1.1 as well may make calls by any
// protocol over its connection, in any order. The peer of all is the same.
func TestConnectAndGRPCShareAConnection(t *testing.T) {
	cert, roots := certificate()
	var peers []string
	svc := &service{unary: func(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		p, _ := peer.FromContext(ctx)
		peers = append(peers, p.Addr.Network()+p.Addr.String()+p.LocalAddr.String()+p.AuthInfo.AuthType())
		return &testpb.SimpleResponse{}, nil
	}}
	s := start(t, svc, nearcall.Creds(nearcall.NewTLS(&tls.Config{Certificates: []tls.Certificate{cert}})))
	offers := &tls.Config{RootCAs: roots, NextProtos: []string{"h2", "http/1.1"}}
	s.url = strings.Replace(s.url, "http:", "https:", 1)
	tr := &http.Transport{TLSClientConfig: offers, ForceAttemptHTTP2: true}
	defer tr.CloseIdleConnections()
	s.client = &http.Client{Transport: sameConn{t, tr}}
	for range 2 {
		if reply, trailer := s.grpcCall(""); reply != wrap(0, "") || trailer.Get("Grpc-Status") != "0" {
			t.Errorf("%q, %v", reply, trailer)
		}
		s.post("UnaryCall", "{}").want(t, 200, "{}")
	}
	if len(peers) != 4 || peers[0] != peers[1] || !strings.HasSuffix(peers[0], "tls") {
		t.Error(peers)
	}
}

// sameConn fails the test if a second connection is opened.
type sameConn struct {
	*testing.T
	http.RoundTripper
}

func (c sameConn) RoundTrip(r *http.Request) (*http.Response, error) {
	trace := &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		if !i.Reused && r.Header.Get("Content-Type") == "application/json" {
			c.Error("the connection is not shared")
		}
	}}
	return c.RoundTripper.RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), trace)))
}

// TestOtherClientsAreRefusedOverHTTP2: the answer says why.
func TestOtherClientsAreRefusedOverHTTP2(t *testing.T) {
	s := start(t, &service{}, nearcall.OtherClients(nearcall.WebClients)).over(2, nil)
	s.post("UnaryCall", "{}").want(t, 200, "{}")
	if _, trailer := s.grpcCall(""); trailer.Get("Grpc-Status") != "12" || !strings.Contains(trailer.Get("Grpc-Message"), "OtherClients") {
		t.Error(trailer)
	}
	other := start(t, &service{}, nearcall.OtherClients(nearcall.GRPCClients)).over(2, nil)
	other.post("UnaryCall", "{}").want(t, 415, "OtherClients")
	other.checkGRPC(insecure.NewCredentials())
	conn, err := grpc.NewClient(s.lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = testpb.NewTestServiceClient(conn).UnaryCall(t.Context(), &testpb.SimpleRequest{})
	if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "OtherClients") {
		t.Error(err)
	}
}

// TestCallsOverHTTP2EndWithTheServer: GracefulStop waits for calls, and Stop cancels them. Both tell
// the client.
func TestCallsOverHTTP2EndWithTheServer(t *testing.T) {
	for name, stop := range map[string]func(*nearcall.Server){"Stop": (*nearcall.Server).Stop, "GracefulStop": (*nearcall.Server).GracefulStop} {
		t.Run(name, func(t *testing.T) {
			running, goOn := make(chan struct{}, 2), make(chan struct{})
			svc := &service{unary: func(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
				running <- struct{}{}
				select {
				case <-goOn:
				case <-ctx.Done():
					return nil, ctx.Err()
				}
				return &testpb.SimpleResponse{Payload: in.Payload}, nil
			}}
			s := start(t, svc).over(2, nil)
			var calls sync.WaitGroup
			calls.Go(func() {
				a := s.post("UnaryCall", `{"payload":{"body":"AAAA"}}`)
				if name == "Stop" {
					a.want(t, 503, "unavailable")
				} else {
					a.want(t, 200, "AAAA")
				}
			})
			<-running
			calls.Go(func() { // over the same connection
				want := map[string]string{"Stop": "14", "GracefulStop": "0"}[name]
				if _, trailer := s.grpcCall(""); trailer.Get("Grpc-Status") != want {
					t.Error(trailer)
				}
			})
			<-running
			var stopped sync.WaitGroup
			stopped.Go(func() { stop(s.server) })
			if name == "GracefulStop" {
				leak.AwaitBlocked(t, "", "server.(*Server).GracefulStop(")
				close(goOn)
			}
			calls.Wait()
			stopped.Wait()
		})
	}
}

// TestAClientMayResetItsStream: the handler's context ends, and the connection stays.
func TestAClientMayResetItsStream(t *testing.T) {
	cancelled := make(chan error)
	svc := &service{bidi: func(both grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
		if err := both.SendHeader(metadata.Pairs("k", "v")); err != nil {
			return err
		}
		_, err := both.Recv()
		<-both.Context().Done()
		cancelled <- err
		return err
	}}
	s := start(t, svc).over(2, nil)
	s.post("UnaryCall", "{}").want(t, 200, "{}")
	out, in := io.Pipe()
	defer in.Close()
	req, err := http.NewRequestWithContext(t.Context(), "POST", s.url+"FullDuplexCall", out)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/connect+json")
	resp, err := s.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if err := <-cancelled; status.Code(err) != codes.Canceled {
		t.Error(err)
	}
	s.client.Transport = sameConn{t, s.client.Transport}
	s.post("UnaryCall", "{}").want(t, 200, "{}")
}

// TestGRPCIsRefusedWhereItsOptionsDoNotApply: net/http serves a connection whose first request is JSON,
// and knows of no tap handle.
func TestGRPCIsRefusedWhereItsOptionsDoNotApply(t *testing.T) {
	tapped := nearcall.GRPCServerOptions(grpc.InTapHandle(func(ctx context.Context, _ *tap.Info) (context.Context, error) {
		return ctx, status.Error(codes.PermissionDenied, "tapped")
	}))
	s := start(t, &service{}, tapped).over(2, nil)
	s.post("UnaryCall", "{}").want(t, 200, "{}")
	if _, trailer := s.grpcCall(""); trailer.Get("Grpc-Status") != "12" || !strings.Contains(trailer.Get("Grpc-Message"), "GRPCServerOptions") {
		t.Error(trailer)
	}
}

// A frames is a client that writes and reads frames of HTTP/2 itself.
type frames struct {
	net.Conn
	in *bufio.Reader
}

func (s *site) frames() *frames {
	c := s.dial()
	return &frames{c, bufio.NewReader(c)}
}

const (
	preface     = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	settings    = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	settingsAck = "\x00\x00\x00\x04\x01\x00\x00\x00\x00"
)

func frame(kind, flags byte, stream uint32, body string) string {
	b := []byte{byte(len(body) >> 16), byte(len(body) >> 8), byte(len(body)), kind, flags}
	return string(binary.BigEndian.AppendUint32(b, stream)) + body
}

// block returns the header block of a request.
func block(contentType string) string {
	text := func(s string) string { return string([]byte{byte(len(s))}) + s }
	return "\x83\x86" + "\x04" + text(path+"UnaryCall") + "\x01" + text("localhost") + "\x0f\x10" + text(contentType)
}

// next returns the next frame, except WINDOW_UPDATE. It acknowledges SETTINGS.
func (f *frames) next(t *testing.T) (kind, flags byte, body string) {
	t.Helper()
	for {
		var head [9]byte
		if _, err := io.ReadFull(f.in, head[:]); err != nil {
			return 0xff, 0, err.Error()
		}
		b := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
		if _, err := io.ReadFull(f.in, b); err != nil {
			t.Fatal(err)
		}
		if head[3] == 4 && head[4] == 0 {
			_, _ = io.WriteString(f, settingsAck)
		}
		if head[3] != 8 {
			return head[3], head[4], string(b)
		}
	}
}

// TestAClientMayWaitForSettings: it makes its request when it has got SETTINGS, or when its own were
// acknowledged, and acknowledges each, before the request or after it. It may send a ping before that.
func TestAClientMayWaitForSettings(t *testing.T) {
	s := start(t, &service{})
	for _, contentType := range []string{"application/json", "application/grpc"} {
		for _, waits := range []string{"for SETTINGS", "for SETTINGS, acknowledges late", "for an acknowledgement"} {
			c := s.frames()
			_, _ = io.WriteString(c, preface+settings+frame(6, 0, 0, "12345678"))
			request := frame(1, 4, 1, block(contentType)) + frame(0, 1, 1, bodyFor(contentType))
			var pong, asked bool
			acks := 0
			for answered := false; !answered; {
				if waits == "for SETTINGS, acknowledges late" && !asked {
					asked = true
					var head [9]byte
					if _, err := io.ReadFull(c.in, head[:]); err != nil || head[3] != 4 || head[4] != 0 {
						t.Fatalf("%q, %v", head, err)
					}
					if _, err := c.in.Discard(int(head[2])); err != nil {
						t.Fatal(err)
					}
					_, _ = io.WriteString(c, request+settingsAck)
				}
				kind, flags, body := c.next(t)
				switch {
				case kind == 4:
					if acks += int(flags); !asked && (flags == 1) == (waits == "for an acknowledgement") {
						asked = true
						_, _ = io.WriteString(c, request)
					}
				case kind == 6 && body == "12345678":
					pong = true
				case kind == 1:
					answered = true
				case kind == 7, kind == 3, kind == 0xff:
					t.Fatalf("frame %d: %q", kind, body)
				}
			}
			if !pong || acks != 1 {
				t.Errorf("%s, %s: the ping was answered: %t; %d acknowledgements of SETTINGS", contentType, waits, pong, acks)
			}
			_ = c.Close()
		}
	}
}

// bodyFor returns the body of a call.
func bodyFor(contentType string) string {
	if contentType == "application/json" {
		return "{}"
	}
	return wrap(0, "")
}

// TestAClientMustMakeARequestInTime: a client that may mix protocols has the time of
// ConnectionTimeout for its first request, whatever it sends before. After that its connection has
// no deadline but the idle time.
func TestAClientMustMakeARequestInTime(t *testing.T) {
	cert, roots := certificate()
	synctest.Test(t, func(t *testing.T) {
		lis := bufconn.Listen(1 << 20)
		srv := nearcall.NewServer(nearcall.ConnectionTimeout(30*time.Second), nearcall.Creds(nearcall.NewTLS(&tls.Config{Certificates: []tls.Certificate{cert}})),
			nearcall.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}))
		testpb.RegisterTestServiceServer(srv, &service{})
		ended := make(chan error, 1)
		go func() { ended <- srv.Serve(lis) }()
		for sent, want := range map[string]time.Duration{
			preface + settings: 30 * time.Second,
			preface + settings + frame(1, 4, 1, block("application/json")) + frame(0, 1, 1, "{}"): 2*time.Minute + time.Second, // GOAWAY comes before the end
		} {
			raw, err := lis.DialContext(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			conn := tls.Client(raw, &tls.Config{RootCAs: roots, ServerName: "127.0.0.1", NextProtos: []string{"h2", "http/1.1"}, Time: func() time.Time { return time.Unix(1.7e9, 0) }})
			if _, err := io.WriteString(conn, sent); err != nil {
				t.Fatal(err)
			}
			go func() {
				for range 10 {
					time.Sleep(2 * time.Second)
					_, _ = io.WriteString(conn, frame(6, 0, 0, "12345678"))
				}
			}()
			_, _ = io.Copy(io.Discard, conn)
			if d := time.Since(begun).Round(time.Second); d != want {
				t.Errorf("the connection ends after %v, want %v", d, want)
			}
			_ = conn.Close()
		}
		srv.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// stopTimeout is how long a server that stops waits for the requests of clients before it refuses calls.
const stopTimeout = time.Second

// TestAClientMustTakeItsAnswer: a stream whose client gives it no window is reset half a minute after
// its call has ended. When the server stops, the connection is closed sooner.
func TestAClientMustTakeItsAnswer(t *testing.T) {
	for stops, want := range map[bool]time.Duration{false: 30 * time.Second, true: stopTimeout + 5*time.Second} {
		synctest.Test(t, func(t *testing.T) {
			lis := bufconn.Listen(1 << 20)
			srv := nearcall.NewServer()
			testpb.RegisterTestServiceServer(srv, &service{})
			ended := make(chan error, 1)
			go func() { ended <- srv.Serve(lis) }()
			raw, err := lis.DialContext(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			c := &frames{raw, bufio.NewReader(raw)}
			const noWindow = "\x00\x04\x00\x00\x00\x00"
			begun := time.Now()
			_, _ = io.WriteString(c, preface+frame(4, 0, 0, noWindow)+frame(1, 4, 1, block("application/json"))+frame(0, 1, 1, "{}"))
			var stopped sync.WaitGroup
			if synctest.Wait(); stops {
				stopped.Go(srv.GracefulStop)
			}
			for {
				if kind, _, _ := c.next(t); kind == 3 || kind == 0xff {
					if d := time.Since(begun).Round(time.Second); d != want || stops != (kind == 0xff) {
						t.Errorf("after %v, want %v, comes the frame %d", d, want, kind)
					}
					break
				}
			}
			_ = c.Close()
			stopped.Wait()
			srv.Stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestAClientMustRead: the connection of a client that gives its stream a window, but reads nothing,
// is closed after half a minute, or sooner once the server stops, whenever that is.
func TestAClientMustRead(t *testing.T) {
	const large = "\x00\x04\x7f\xff\xff\xff" // the window of a stream
	for stopsAfter, want := range map[time.Duration]time.Duration{
		time.Hour: 30 * time.Second, time.Second: stopTimeout + 6*time.Second, 10 * time.Second: stopTimeout + 15*time.Second,
	} {
		synctest.Test(t, func(t *testing.T) {
			lis := bufconn.Listen(64 << 10)
			srv := nearcall.NewServer()
			svc := &service{unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
				return &testpb.SimpleResponse{Payload: body(4 << 20)}, nil
			}}
			testpb.RegisterTestServiceServer(srv, svc)
			ended := make(chan error, 1)
			closed := make(chan struct{})
			go func() { ended <- srv.Serve(closeTold{lis, closed}) }()
			c, err := lis.DialContext(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			_, _ = io.WriteString(c, preface+frame(4, 0, 0, large)+frame(8, 0, 0, "\x7f\x00\x00\x00")+frame(1, 4, 1, block("application/json"))+frame(0, 1, 1, "{}"))
			go func() {
				time.Sleep(stopsAfter)
				srv.GracefulStop()
			}()
			<-closed
			if d := time.Since(begun).Round(time.Second); d != want {
				t.Errorf("the server, stopped after %v, closes the connection after %v, want %v", stopsAfter, d, want)
			}
			srv.GracefulStop()
			if d := time.Since(begun).Round(time.Second); d > want+time.Second {
				t.Errorf("GracefulStop returns after %v", d)
			}
			if err := <-ended; err != nil {
				t.Error(err)
			}
			_ = c.Close()
			time.Sleep(time.Hour)
		})
	}
}

// closeTold is a listener that closes a channel when the server closes its connection.
type closeTold struct {
	net.Listener
	closed chan struct{}
}

func (l closeTold) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &toldConn{Conn: c, tell: sync.OnceFunc(func() { close(l.closed) })}, nil
}

type toldConn struct {
	net.Conn
	tell func()
}

func (c *toldConn) Close() error {
	c.tell()
	return c.Conn.Close()
}

// A waiting connection makes no request before the server has sent something.
type waiting struct {
	net.Conn
	writes int
	heard  chan struct{}
	once   sync.Once
}

func (w *waiting) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	w.once.Do(func() { close(w.heard) })
	return n, err
}

func (w *waiting) Write(b []byte) (int, error) {
	if w.writes++; w.writes == 2 { // the first holds the preface and SETTINGS
		<-w.heard
	}
	return w.Conn.Write(b)
}

// TestLargeRequestsOfClientsThatWait: the client does not use the window that grpc-go has for the
// connection, which net/http would not know of.
func TestLargeRequestsOfClientsThatWait(t *testing.T) {
	for name, opts := range map[string][]nearcall.ServerOption{
		"by default":         nil,
		"with large windows": {nearcall.InitialWindowSize(1 << 20), nearcall.InitialConnWindowSize(1 << 24)},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, &service{}, opts...).over(2, nil)
			s.client.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, address)
				return &waiting{Conn: conn, heard: make(chan struct{})}, err
			}
			large := base64.StdEncoding.EncodeToString(make([]byte, 512<<10))
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() { s.post("UnaryCall", `{"payload":{"body":"`+large+`"}}`).want(t, 200, large) })
			}
			all.Wait()
		})
	}
}

// TestFramesAreSmall: the server keeps a frame until all of it has come, so a client gets no more
// than the least that it may send.
func TestFramesAreSmall(t *testing.T) {
	c := start(t, &service{}).frames()
	_, _ = io.WriteString(c, preface+settings+frame(1, 4, 1, block("application/json"))+frame(0, 1, 1, "{}"))
	for {
		kind, flags, _ := c.next(t)
		if kind == 0xff {
			t.Fatal("the call was not answered")
		}
		if kind <= 1 && flags&1 != 0 {
			break
		}
	}
	const unknown = 0xfa
	_, _ = io.WriteString(c, frame(unknown, 0, 0, strings.Repeat("x", 16<<10))+frame(6, 0, 0, "12345678"))
	if kind, flags, body := c.next(t); kind != 6 || flags != 1 {
		t.Errorf("after a frame of 16 KiB comes the frame %d: %q", kind, body)
	}
	_, _ = io.WriteString(c, frame(unknown, 0, 0, strings.Repeat("x", 16<<10+1)))
	if kind, _, body := c.next(t); kind != 7 || len(body) < 8 || body[7] != 6 {
		t.Errorf("after a larger frame comes the frame %d: %q", kind, body)
	}
}

// nameless is a listener of connections without addresses.
type nameless struct{ net.Listener }

type namelessConn struct{ net.Conn }

func (namelessConn) LocalAddr() net.Addr  { return nil }
func (namelessConn) RemoteAddr() net.Addr { return nil }

func (l nameless) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return namelessConn{c}, err
}

// TestAConnectionMayLackAddresses: such as one that a program gives to ServeConn.
func TestAConnectionMayLackAddresses(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := nearcall.NewServer()
	testpb.RegisterTestServiceServer(srv, &service{})
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(nameless{lis}) }()
	s := &site{T: t, server: srv, lis: lis, url: "http://" + lis.Addr().String() + path}
	for _, version := range []int{1, 2} {
		s.over(version, nil).post("UnaryCall", "{}").want(t, 200, "{}")
		s.client.CloseIdleConnections()
	}
	srv.Stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestAClientThatBreaksARuleIsLogged: with a line, which is no error of the server.
func TestAClientThatBreaksARuleIsLogged(t *testing.T) {
	c := start(t, &service{}).frames()
	_, _ = io.WriteString(c, preface+settings+frame(1, 4, 1, block("application/json"))+frame(0, 1, 1, "{}")+frame(6, 0, 1, "12345678"))
	for {
		if kind, _, body := c.next(t); kind == 0xff {
			t.Fatal(body)
		} else if kind == 7 {
			break
		}
	}
	if all := logged.with(c.LocalAddr().String()); len(all) != 1 || !strings.Contains(all[0], "INFO: [nearcall]") || !strings.Contains(all[0], "PROTOCOL_ERROR") {
		t.Errorf("%q", all)
	}
}

// TestLimitsOfHTTP2AreGRPCs: MaxConcurrentStreams(0) is no limit, and pings come at most each second.
func TestLimitsOfHTTP2AreGRPCs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lis := bufconn.Listen(1 << 20)
		srv := nearcall.NewServer(nearcall.MaxConcurrentStreams(0), nearcall.KeepaliveParams(keepalive.ServerParameters{Time: time.Millisecond}))
		testpb.RegisterTestServiceServer(srv, &service{})
		ended := make(chan error, 1)
		go func() { ended <- srv.Serve(lis) }()
		conn, err := lis.DialContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c := &frames{conn, bufio.NewReader(conn)}
		begun := time.Now()
		_, _ = io.WriteString(c, preface+settings+frame(1, 4, 1, block("application/json"))+frame(0, 1, 1, "{}"))
		for {
			kind, flags, body := c.next(t)
			for ; kind == 4 && len(body) >= 6; body = body[6:] {
				if n := binary.BigEndian.Uint32([]byte(body[2:])); body[1] == 3 && n < 1<<30 {
					t.Errorf("the limit of calls is %d", n)
				}
			}
			if kind == 0xff || kind == 6 && flags == 0 {
				if d := time.Since(begun); kind != 6 || d < time.Second {
					t.Errorf("the frame %d comes after %v", kind, d)
				}
				break
			}
		}
		_ = c.Close()
		srv.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
