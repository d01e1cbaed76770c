package proxies

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
)

const largest = 16 << 20 // bytes of a message

// A server serves calls to proxies.
type server struct {
	testpb.UnimplementedTestServiceServer
	address string
	stop    func()

	mu      sync.Mutex
	peer    peer.Peer     // of the last unary call
	request *http.Request // of its WebSocket; nil for none
	caller  netip.Addr    // its caller, behind a proxy of this machine

	received chan struct{} // a message of a client stream has come
	next     chan struct{} // a server stream sends its next message
	sent     atomic.Int64  // bytes that handlers have sent in messages of a megabyte
	begun    chan struct{} // a connection has begun
	ended    chan struct{} // a connection has ended
}

// serve serves at target, such as tcp:127.0.0.1:0, until the test ends.
func serve(t *testing.T, target string, opts ...nearcall.ServerOption) *server {
	t.Helper()
	s := &server{
		received: make(chan struct{}, 100), next: make(chan struct{}),
		begun: make(chan struct{}, 10_000), ended: make(chan struct{}, 10_000),
	}
	lis, err := nearcall.Listen(target)
	if err != nil {
		t.Fatal(err)
	}
	s.address = lis.Addr().String()
	srv := nearcall.NewServer(append(opts, nearcall.StatsHandler(s), nearcall.MaxRecvMsgSize(largest))...)
	testpb.RegisterTestServiceServer(srv, s)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	s.stop = sync.OnceFunc(func() {
		srv.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) { // stopped before Serve
			t.Error(err)
		}
	})
	t.Cleanup(s.stop)
	return s
}

// UnaryCall returns the payload, and the server's address as the user name.
func (s *server) UnaryCall(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	p, _ := peer.FromContext(ctx)
	caller, err := CallerOf(ctx, netip.MustParsePrefix("127.0.0.1/32"))
	if err != nil && p.Addr.Network() != "unix" {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peer, s.caller = *p, caller
	s.request, _ = nearcall.WebSocketRequest(ctx)
	return &testpb.SimpleResponse{Payload: in.GetPayload(), Username: s.address}, nil
}

// seen returns the peer, the request of the WebSocket and the caller of the last unary call.
func (s *server) seen() (peer.Peer, *http.Request, netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peer, s.request, s.caller
}

// StreamingOutputCall sends messages of the sizes that it is asked for, each but the first
// when the test says so. It sends those of a megabyte as long as the stream takes them.
func (s *server) StreamingOutputCall(in *testpb.StreamingOutputCallRequest, stream grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	for i, p := range in.GetResponseParameters() {
		if i > 0 && p.GetSize() < 1e6 {
			select {
			case <-s.next:
			case <-stream.Context().Done():
				return status.FromContextError(stream.Context().Err()).Err()
			}
		}
		if err := stream.Send(&testpb.StreamingOutputCallResponse{Payload: payload(p.GetSize())}); err != nil {
			return err
		}
		if p.GetSize() >= 1e6 {
			s.sent.Add(int64(p.GetSize()))
		}
	}
	return nil
}

// StreamingInputCall returns how many bytes it has received.
func (s *server) StreamingInputCall(stream grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]) error {
	sum := 0
	for {
		in, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(&testpb.StreamingInputCallResponse{AggregatedPayloadSize: int32(sum)})
		}
		if err != nil {
			return err
		}
		sum += len(in.GetPayload().GetBody())
		s.received <- struct{}{}
	}
}

// FullDuplexCall returns what it receives.
func (s *server) FullDuplexCall(stream grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	for {
		in, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.Send(&testpb.StreamingOutputCallResponse{Payload: in.GetPayload()}); err != nil {
			return err
		}
	}
}

func (s *server) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (s *server) HandleRPC(context.Context, stats.RPCStats)                         {}
func (s *server) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (s *server) HandleConn(_ context.Context, event stats.ConnStats) {
	switch event.(type) {
	case *stats.ConnBegin:
		s.begun <- struct{}{}
	case *stats.ConnEnd:
		s.ended <- struct{}{}
	}
}

func payload(size int32) *testpb.Payload {
	body := make([]byte, size)
	for i := range body {
		body[i] = byte(i % 251)
	}
	return &testpb.Payload{Body: body}
}

// await waits for an event.
func await(t *testing.T, events <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-events:
	case <-time.After(patience):
		t.Fatalf("%s: not within %v", what, patience)
	}
}

// callers' address: unlike the proxy's, which the system chooses.
const callersAddress = "127.0.0.5"

// dialContext connects to p, whatever name its port is reached by.
func (p *proxy) dialContext(ctx context.Context, _, address string) (net.Conn, error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(callersAddress)}}
	return d.DialContext(ctx, "tcp", net.JoinHostPort(p.ip, port))
}

// host returns the authority of URLs of a scheme.
func (p *proxy) host(scheme string) string {
	if scheme == "http" || scheme == "ws" {
		return p.http
	}
	return strings.Replace(p.https, p.ip, site, 1)
}

// client returns a client that calls through p, by the scheme ws or wss.
func (p *proxy) client(scheme string, opts ...nearcall.DialOption) testpb.TestServiceClient {
	p.t.Helper()
	return testpb.NewTestServiceClient(p.dial(scheme, opts...))
}

func (p *proxy) dial(scheme string, opts ...nearcall.DialOption) *nearcall.ClientConn {
	p.t.Helper()
	opts = append([]nearcall.DialOption{
		nearcall.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return p.dialContext(ctx, "tcp", address)
		}),
		nearcall.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(largest)),
	}, opts...)
	if scheme == "wss" {
		opts = append(opts, nearcall.WithTransportCredentials(nearcall.NewTLS(p.cert.config())))
	}
	conn, err := nearcall.NewClient(scheme+"://"+p.host(scheme)+"/calls", opts...)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// A certificate for the proxies.
type certificate struct {
	certFile, keyFile string
	roots             *x509.CertPool
}

func (c *certificate) config() *tls.Config { return &tls.Config{RootCAs: c.roots} }

func newCertificate(t *testing.T, dir string) *certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{site, "localhost"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyBytes, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	c := &certificate{filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), x509.NewCertPool()}
	for file, block := range map[string]*pem.Block{
		c.certFile: {Type: "CERTIFICATE", Bytes: cert}, c.keyFile: {Type: "PRIVATE KEY", Bytes: keyBytes},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	parsed, err := x509.ParseCertificate(cert)
	if err != nil {
		t.Fatal(err)
	}
	c.roots.AddCert(parsed)
	return c
}

// A forger adds an X-Forwarded-For to the request for a WebSocket.
type forger struct {
	net.Conn
	done bool
}

func (f *forger) Write(b []byte) (int, error) {
	if f.done {
		return f.Conn.Write(b)
	}
	f.done = true
	if _, err := io.WriteString(f.Conn, strings.Replace(string(b), "\r\n", "\r\nX-Forwarded-For: 192.0.2.1\r\n", 1)); err != nil {
		return 0, err
	}
	return len(b), nil
}

func forged(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "x-forwarded-for", "192.0.2.2")
}
