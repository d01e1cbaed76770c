package interop

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/authz"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/credentials/local"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/forward"
	_ "github.com/nearcall/nearcall/quic"
)

// TestPeersAreTheSameOnAllPaths asks handlers, interceptors, stats handlers, package authz and
// clients who their peer is, on every path on which a call can come. Programs decide by these
// answers what a call may do, so they must be those of grpc-go over a connection that is
// secured like the path.
func TestPeersAreTheSameOnAllPaths(t *testing.T) {
	oracles := make(map[string]*witness)
	for _, like := range []string{"TLS", "insecure", "local"} {
		oracles[like] = newWitness(t, identities())
		oracles[like].throughGRPC(t, like)
	}
	for _, f := range faces() {
		t.Run(f.name, func(t *testing.T) {
			w := newWitness(t, identities())
			f.call(t, w, f.like)
			for _, question := range w.asked {
				like := f.like
				if like == "local" && strings.HasPrefix(question, "authz: ") && f.name != "grpc-go over unix" {
					like = "insecure" // grpc-go's cannot decide, because a path has no port
				}
				want := oracles[like].answers[question]
				if said := f.differs[question]; said != "" {
					want = said
				}
				if got := w.answers[question]; got != want {
					t.Errorf("%s: %s, want %s", question, got, want)
				}
			}
			if len(w.asked) < 10 {
				t.Errorf("only %q were asked", w.asked)
			}
		})
	}
}

// A face is a way in which calls come.
type face struct {
	name string
	like string // the security that grpc-go's connection has
	call func(t *testing.T, w *witness, like string)

	differs map[string]string // answers that are not grpc-go's
}

// Answers that cannot be grpc-go's: other addresses, and what ServeHTTP of a *grpc.Server does
// not pass on.
var (
	overQUICDiffers = map[string]string{
		"the handler's peer: Addr": "*net.UDPAddr udp 127.0.0.1", "the handler's peer: LocalAddr": "*net.UDPAddr udp 127.0.0.1",
		"the client's peer: Addr": "*net.UDPAddr udp 127.0.0.1", "the client's peer: LocalAddr": "*net.UDPAddr udp any",
		"the stats handler: addresses": "*net.UDPAddr *net.UDPAddr",
	}
	overShmDiffers = map[string]string{
		"the handler's peer: Addr": "*net.UnixAddr shm @", "the handler's peer: LocalAddr": "*net.UnixAddr shm path",
		"the client's peer: Addr": "*net.UnixAddr shm path", "the client's peer: LocalAddr": "*net.UnixAddr shm @",
	}
	forwardedDiffers = map[string]string{
		"the handler's peer: SPIFFEID": "<nil>", "the handler's peer: Addr": "transport.strAddr tcp 127.0.0.1",
		"the stats handler: addresses": "transport.strAddr *net.TCPAddr",
		"authz: allow a name":          noConnection, "authz: deny a name": noConnection, "authz: deny all with names": noConnection, "authz: deny a header": noConnection,
	}
	requestDiffers = map[string]string{"the stats handler: addresses": "transport.strAddr *net.TCPAddr"}
	inprocDiffers  = map[string]string{
		"the handler's peer: Addr": "inproc.Addr inproc orders", "the handler's peer: LocalAddr": "inproc.Addr inproc orders",
		"the client's peer: Addr": "inproc.Addr inproc orders", "the client's peer: LocalAddr": "inproc.Addr inproc orders",
		"the stats handler: addresses": "inproc.Addr inproc.Addr",
		"metadata: :authority":         "orders",
	}
)

const noConnection = "rpc error: code = Internal desc = gRPC RBAC: missing connection in incoming context"

// faces are all of them. In those that are local, the credentials are those of grpc-go's
// package local, or none in process.
func faces() []face {
	all := []face{
		{name: "tcp", like: "insecure", call: overNearcall("tcp:127.0.0.1:0")},
		{name: "ws", like: "insecure", call: overNearcall("ws://127.0.0.1:0/")},
		{name: "ws, an HTTP server", like: "insecure", call: overHTTPServer},
		{name: "grpc-go over tcp", like: "insecure", call: overHTTP2("tcp:127.0.0.1:0")},
		{name: "TLS", like: "TLS", call: overNearcall("tcp:127.0.0.1:0")},
		{name: "wss", like: "TLS", call: overNearcall("wss://127.0.0.1:0/")},
		{name: "wss, an HTTP server", like: "TLS", call: overHTTPServer},
		{name: "a tls.Listener", like: "TLS", call: overTLSListener},
		{name: "quic", like: "TLS", call: overNearcall("quic:127.0.0.1:0"), differs: overQUICDiffers},
		{name: "grpc-go over TLS", like: "TLS", call: overHTTP2("tcp:127.0.0.1:0")},
		{name: "grpc-go over TLS, and HTTP/1.1", like: "TLS", call: overMixedHTTP2, differs: requestDiffers},
		{name: "grpc-go, an HTTP server", like: "insecure", call: overHTTPServersHTTP2, differs: requestDiffers},
		{name: "grpc-go, an HTTP server, TLS", like: "TLS", call: overHTTPServersHTTP2, differs: requestDiffers},
		{name: "unix", like: "local", call: overNearcall("unix:", nearcall.WithDisableSharedMemory())},
		{name: "grpc-go over unix", like: "local", call: overHTTP2("unix:")},
		{name: "forwarded, TLS", like: "TLS", call: overForward("tcp:127.0.0.1:0"), differs: forwardedDiffers},
		{name: "forwarded, wss", like: "TLS", call: overForward("wss://127.0.0.1:0/"), differs: forwardedDiffers},
		{name: "inproc", like: "local", call: overNearcall("inproc:orders"), differs: inprocDiffers},
	}
	for _, contentType := range []string{"application/json", "application/proto", "application/grpc-web+proto", "application/grpc-web-text"} {
		for _, like := range []string{"insecure", "TLS", "local"} {
			all = append(all, face{name: contentType + ", " + like, like: like, call: overHTTP1(contentType)})
		}
	}
	if runtime.GOOS == "linux" {
		all = append(all, face{name: "shm", like: "local", call: overNearcall("shm:"), differs: overShmDiffers},
			face{name: "unix, upgraded", like: "local", call: overNearcall("unix:"), differs: overShmDiffers})
	}
	return all
}

// A witness is a service, with interceptors and stats handlers, that asks who calls.
type witness struct {
	testpb.UnimplementedTestServiceServer
	ids     certified
	answers map[string]string
	asked   []string // the keys of answers
	path    string   // of the unix socket, if there is one

	then func(context.Context) // called by the handler; may be nil
}

func newWitness(t *testing.T, ids certified) *witness {
	return &witness{ids: ids, answers: make(map[string]string), path: filepath.Join(t.TempDir(), "s")}
}

// note records an answer.
func (w *witness) note(question, format string, args ...any) {
	if _, before := w.answers[question]; !before {
		w.asked = append(w.asked, question)
	}
	w.answers[question] = fmt.Sprintf(format, args...)
}

// notePeer records what p, whose peer it is, tells.
func (w *witness) notePeer(whose string, p *peer.Peer) {
	w.note(whose+": AuthInfo", "%T %s", p.AuthInfo, p.AuthInfo.AuthType())
	level := "no level"
	if a, ok := p.AuthInfo.(interface {
		GetCommonAuthInfo() credentials.CommonAuthInfo
	}); ok {
		level = a.GetCommonAuthInfo().SecurityLevel.String()
	}
	w.note(whose+": SecurityLevel", "%s, private: %v", level, credentials.CheckSecurityLevel(p.AuthInfo, credentials.PrivacyAndIntegrity) == nil)
	info, _ := p.AuthInfo.(credentials.TLSInfo)
	var names []string
	for _, c := range info.State.PeerCertificates {
		names = append(names, c.Subject.CommonName)
	}
	w.note(whose+": State", "complete %v, TLS %x, %q, chains %d", info.State.HandshakeComplete, info.State.Version, names, len(info.State.VerifiedChains))
	w.note(whose+": SPIFFEID", "%v", info.SPIFFEID)
	w.note(whose+": Addr", "%s", w.address(p.Addr))
	w.note(whose+": LocalAddr", "%s", w.address(p.LocalAddr))
}

// address returns what of an address is the same for all calls of a kind.
func (w *witness) address(a net.Addr) string {
	if a == nil {
		return "nil"
	}
	text := a.String()
	if at, err := netip.ParseAddrPort(text); err == nil && at.Port() != 0 {
		text = at.Addr().String()
		if at.Addr().IsUnspecified() {
			text = "any"
		}
	}
	return fmt.Sprintf("%T %s %s", a, a.Network(), strings.Replace(text, w.path, "path", 1))
}

// policiesByName are policies for package authz that depend on who calls.
var policiesByName = map[string]string{
	"allow a name":        `{"name": "p", "allow_rules": [{"name": "a", "source": {"principals": ["spiffe://shop.example/alice"]}}]}`,
	"deny a name":         `{"name": "p", "deny_rules": [{"name": "d", "source": {"principals": ["spiffe://shop.example/alice"]}}], "allow_rules": [{"name": "all"}]}`,
	"deny all with names": `{"name": "p", "deny_rules": [{"name": "d", "source": {"principals": ["*"]}}], "allow_rules": [{"name": "all"}]}`,
	"deny a header":       `{"name": "p", "deny_rules": [{"name": "d", "request": {"headers": [{"key": "k", "values": ["v"]}]}}], "allow_rules": [{"name": "all"}]}`,
}

// UnaryCall notes what the handler can ask.
func (w *witness) UnaryCall(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	p, _ := peer.FromContext(ctx)
	w.notePeer("the handler's peer", p)
	md, _ := metadata.FromIncomingContext(ctx)
	for _, key := range []string{"k", "k-bin", "host", "te", "connection", "grpc-timeout", "content-length"} {
		w.note("metadata: "+key, "%q", md[key])
	}
	authority := "none"
	if a := md[":authority"]; len(a) == 1 {
		authority = strings.Split(a[0], ":")[0]
	}
	w.note("metadata: :authority", "%s", authority)
	method, _ := grpc.Method(ctx)
	w.note("method", "%s", method)
	if w.then != nil {
		w.then(ctx)
	}
	return &testpb.SimpleResponse{}, nil
}

// intercept notes what interceptors can ask.
func (w *witness) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	for name, policy := range policiesByName {
		p, err := authz.NewStatic(policy)
		if err != nil {
			return nil, err
		}
		_, err = p.UnaryInterceptor(ctx, req, info, func(context.Context, any) (any, error) { return nil, nil })
		w.note("authz: "+name, "%s", strings.Replace(fmt.Sprint(err), w.path, "path", 1))
	}
	return handler(ctx, req)
}

// TagRPC, HandleRPC, TagConn and HandleConn note what stats handlers can ask.
func (w *witness) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (w *witness) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (w *witness) HandleConn(context.Context, stats.ConnStats)                       {}
func (w *witness) HandleRPC(_ context.Context, s stats.RPCStats) {
	if h, ok := s.(*stats.InHeader); ok && !h.Client {
		w.note("the stats handler: addresses", "%T %T", h.RemoteAddr, h.LocalAddr)
	}
}

// callOver makes a call, and notes what the client is told of the server.
func (w *witness) callOver(t *testing.T, conn grpc.ClientConnInterface) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), caseTimeout)
	defer cancel()
	var p peer.Peer
	ctx = metadata.AppendToOutgoingContext(ctx, "k", "v", "k-bin", "\x00\xff")
	if _, err := testpb.NewTestServiceClient(conn).UnaryCall(ctx, &testpb.SimpleRequest{}, grpc.Peer(&p), grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	w.notePeer("the client's peer", &p)
}

// throughGRPC asks grpc-go.
func (w *witness) throughGRPC(t *testing.T, like string) {
	client, server := w.ids.credentials(like)
	network, address := "tcp", "127.0.0.1:0"
	if like == "local" {
		network, address = "unix", w.path
	}
	lis, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer(grpc.Creds(server), grpc.UnaryInterceptor(w.intercept), grpc.StatsHandler(w))
	testpb.RegisterTestServiceServer(srv, w)
	go func() { _ = srv.Serve(lis) }()
	defer srv.Stop()
	w.dialGRPC(t, lis, client)
}

// dialGRPC makes a call with grpc-go.
func (w *witness) dialGRPC(t *testing.T, lis net.Listener, client credentials.TransportCredentials) {
	target := lis.Addr().String()
	if lis.Addr().Network() == "unix" {
		target = "unix:" + target
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(client))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	w.callOver(t, conn)
}

// server returns a server of nearcall that has w's service.
func (w *witness) server(t *testing.T, opts ...nearcall.ServerOption) *nearcall.Server {
	srv := nearcall.NewServer(append(opts, nearcall.UnaryInterceptor(w.intercept), nearcall.StatsHandler(w))...)
	testpb.RegisterTestServiceServer(srv, w)
	t.Cleanup(srv.Stop)
	return srv
}

// listen serves w at target, which may be a scheme of files alone.
func (w *witness) listen(t *testing.T, srv *nearcall.Server, target string) nearcall.Listener {
	t.Helper()
	if strings.HasSuffix(target, ":") {
		target += w.path
	}
	lis, err := nearcall.Listen(target)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = srv.Serve(lis) }()
	return lis
}

// overNearcall calls with nearcall's client. The handler calls the client back, whose handler
// must be told the same as the client.
func overNearcall(target string, opts ...nearcall.DialOption) func(*testing.T, *witness, string) {
	return func(t *testing.T, w *witness, like string) {
		client, server := w.ids.credentials(like)
		if like == "TLS" {
			client, server = nearcall.NewTLS(w.ids.client), nearcall.NewTLS(w.ids.server)
		}
		if strings.HasPrefix(target, "quic:") {
			client, server = nearcall.NewTLS(w.ids.client), nearcall.NewTLS(w.ids.server)
		}
		lis := w.listen(t, w.server(t, nearcall.Creds(server)), target)
		w.callNear(t, lis.Target(), append(opts, nearcall.WithTransportCredentials(client))...)
	}
}

func (w *witness) callNear(t *testing.T, target string, opts ...nearcall.DialOption) {
	t.Helper()
	back := &witness{ids: w.ids, path: w.path, answers: make(map[string]string)}
	w.then = func(ctx context.Context) {
		if _, err := testpb.NewTestServiceClient(nearcall.PeerConn(ctx)).UnaryCall(ctx, &testpb.SimpleRequest{}); err != nil {
			t.Error(err)
		}
	}
	conn, err := nearcall.NewClient(target, append(opts, nearcall.WithServer(back.server(t)))...)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	w.callOver(t, conn)
	for _, question := range back.asked {
		if what, ok := strings.CutPrefix(question, "the handler's peer: "); ok && back.answers[question] != w.answers["the client's peer: "+what] {
			t.Errorf("the peer of the client's handler: %s: %s, want %s", what, back.answers[question], w.answers["the client's peer: "+what])
		}
	}
	if len(back.asked) < 10 {
		t.Errorf("the client's handler was only asked %q", back.asked)
	}
}

// overHTTPServer calls over a WebSocket of an HTTP server.
func overHTTPServer(t *testing.T, w *witness, like string) {
	there := httptest.NewUnstartedServer(w.server(t).WebSockets())
	defer there.Close()
	var opts []nearcall.DialOption
	if like == "TLS" {
		there.TLS = w.ids.server
		there.StartTLS()
		opts = append(opts, nearcall.WithTransportCredentials(nearcall.NewTLS(w.ids.client)))
	} else {
		there.Start()
	}
	w.callNear(t, strings.Replace(there.URL, "http", "ws", 1), opts...)
}

// overTLSListener calls a server that has no credentials, by a listener that has.
func overTLSListener(t *testing.T, w *witness, _ string) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv, config := w.server(t), w.ids.server.Clone()
	config.NextProtos = []string{"h2"}
	go func() { _ = srv.Serve(tls.NewListener(lis, config)) }()
	w.callNear(t, "tcp:"+lis.Addr().String(), nearcall.WithTransportCredentials(credentials.NewTLS(w.ids.client)))
}

// overForward calls a nearcall server that forwards to a *grpc.Server.
func overForward(target string) func(*testing.T, *witness, string) {
	return func(t *testing.T, w *witness, _ string) {
		there := grpc.NewServer(grpc.UnaryInterceptor(w.intercept), grpc.StatsHandler(w))
		testpb.RegisterTestServiceServer(there, w)
		defer there.Stop()
		srv := nearcall.NewServer(forward.To(there), nearcall.Creds(nearcall.NewTLS(w.ids.server)))
		defer srv.Stop()
		conn, err := nearcall.NewClient(w.listen(t, srv, target).Target(), nearcall.WithTransportCredentials(nearcall.NewTLS(w.ids.client)))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		w.callOver(t, conn)
	}
}

// overHTTP2 calls with grpc-go's client.
func overHTTP2(target string) func(*testing.T, *witness, string) {
	return func(t *testing.T, w *witness, like string) {
		client, server := w.ids.credentials(like)
		w.dialGRPC(t, w.listen(t, w.server(t, nearcall.Creds(server)), target), client)
	}
}

// overMixedHTTP2 calls with grpc-go's client, whose TLS handshake offers HTTP/1.1 as well.
func overMixedHTTP2(t *testing.T, w *witness, _ string) {
	config := w.ids.client.Clone()
	config.NextProtos = []string{"h2", "http/1.1"}
	w.dialGRPC(t, w.listen(t, w.server(t, nearcall.Creds(nearcall.NewTLS(w.ids.server))), "tcp:127.0.0.1:0"), credentials.NewTLS(config))
}

// overHTTPServersHTTP2 calls with grpc-go's client an HTTP server.
func overHTTPServersHTTP2(t *testing.T, w *witness, like string) {
	there := httptest.NewUnstartedServer(w.server(t))
	there.Config.HTTP2 = &http.HTTP2Config{MaxEncoderHeaderTableSize: 1}
	there.Config.Protocols = new(http.Protocols)
	there.Config.Protocols.SetUnencryptedHTTP2(true)
	defer there.Close()
	client, _ := w.ids.credentials(like)
	if like == "TLS" {
		there.EnableHTTP2, there.TLS = true, w.ids.server.Clone()
		there.StartTLS()
	} else {
		there.Start()
	}
	w.dialGRPC(t, there.Listener, client)
}

// overHTTP1 calls with HTTP/1.1, in the protocol of contentType.
func overHTTP1(contentType string) func(*testing.T, *witness, string) {
	return func(t *testing.T, w *witness, like string) {
		_, server := w.ids.credentials(like)
		target, url := "tcp:127.0.0.1:0", "http://"
		switch like {
		case "TLS":
			server, url = nearcall.NewTLS(w.ids.server), "https://"
		case "local":
			target = "unix:"
		}
		lis := w.listen(t, w.server(t, nearcall.Creds(server)), target)
		host := lis.Addr().String()
		if like == "local" {
			host = "localhost"
		}
		body := map[string]string{"application/json": "{}", "application/grpc-web+proto": "\x00\x00\x00\x00\x00", "application/grpc-web-text": "AAAAAAA="}[contentType]
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+host+"/grpc.testing.TestService/UnaryCall", bytes.NewBufferString(body))
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range map[string]string{"Content-Type": contentType, "K": "v", "K-Bin": "AP8", "TE": "trailers"} {
			req.Header.Set(k, v)
		}
		config := w.ids.client.Clone()
		config.NextProtos = []string{"http/1.1"}
		transport := &http.Transport{TLSClientConfig: config, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, lis.Addr().Network(), lis.Addr().String())
		}}
		defer transport.CloseIdleConnections()
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if reply, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s, %v", resp.Status, reply, err)
		}
	}
}

// certified are the configurations of a client and a server that have certificates with SPIFFE
// IDs.
type certified struct{ client, server *tls.Config }

// credentials returns those of grpc-go that secure connections like an oracle's.
func (c certified) credentials(like string) (client, server credentials.TransportCredentials) {
	switch like {
	case "TLS":
		return credentials.NewTLS(c.client), credentials.NewTLS(c.server)
	case "local":
		return local.NewCredentials(), local.NewCredentials()
	}
	return insecure.NewCredentials(), insecure.NewCredentials()
}

var identities = sync.OnceValue(func() certified {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	sign := func(c *x509.Certificate) []byte {
		der, err := x509.CreateCertificate(rand.Reader, c, ca, key.Public(), key)
		if err != nil {
			panic(err)
		}
		return der
	}
	root, err := x509.ParseCertificate(sign(ca))
	if err != nil {
		panic(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(root)
	leaf := func(name string) []tls.Certificate {
		return []tls.Certificate{{PrivateKey: key, Certificate: [][]byte{sign(&x509.Certificate{
			SerialNumber: big.NewInt(2), NotAfter: ca.NotAfter, Subject: pkix.Name{CommonName: name},
			DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
			URIs: []*url.URL{{Scheme: "spiffe", Host: "shop.example", Path: "/" + name}},
		})}}}
	}
	return certified{
		client: &tls.Config{RootCAs: roots, Certificates: leaf("alice")},
		server: &tls.Config{Certificates: leaf("server"), ClientCAs: roots, ClientAuth: tls.RequireAndVerifyClientCert},
	}
})
