package test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

// certificates holds the certificates of a CA, of a server named localhost, and of a
// client named alice.
type certificates struct {
	roots         *x509.CertPool
	localhost, me tls.Certificate
}

// server returns a configuration that requires client certificates if clients is set.
func (c certificates) server(clients *x509.CertPool) *tls.Config {
	cfg := &tls.Config{Certificates: []tls.Certificate{c.localhost}, ClientCAs: clients, NextProtos: []string{"h2"}}
	if clients != nil {
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return cfg
}

func (c certificates) client(me *tls.Certificate) *tls.Config {
	cfg := &tls.Config{RootCAs: c.roots}
	if me != nil {
		cfg.Certificates = []tls.Certificate{*me}
	}
	return cfg
}

func newCertificates(t testing.TB) certificates {
	t.Helper()
	c, _ := newCertificatesAndRoot(t)
	return c
}

// newCertificatesAndRoot returns new certificates and the CA's, in DER.
func newCertificatesAndRoot(t testing.TB) (certificates, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	sign := func(c *x509.Certificate) []byte {
		der, err := x509.CreateCertificate(rand.Reader, c, ca, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	root, err := x509.ParseCertificate(sign(ca))
	if err != nil {
		t.Fatal(err)
	}
	c := certificates{roots: x509.NewCertPool()}
	c.roots.AddCert(root)
	leaf := func(name string) tls.Certificate {
		return tls.Certificate{PrivateKey: key, Certificate: [][]byte{sign(&x509.Certificate{
			SerialNumber: big.NewInt(2), NotAfter: ca.NotAfter, DNSNames: []string{name}, Subject: pkix.Name{CommonName: name},
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		})}}
	}
	c.localhost, c.me = leaf("localhost"), leaf("alice")
	return c, root.Raw
}

func TestTLS(t *testing.T) {
	certs := newCertificates(t)
	var p peer.Peer
	var md metadata.MD
	lis := listen(t, "tcp:127.0.0.1:0")
	start(t, serve(t, seen(&p, &md), nearcall.Creds(credentials.NewTLS(certs.server(certs.roots)))), lis)

	mutual := nearcall.WithTransportCredentials(credentials.NewTLS(certs.client(&certs.me)))
	client := dial(t, lis.Target(), mutual, nearcall.WithPerRPCCredentials(token{}))
	wantCode(t, <-invoke(t.Context(), client), codes.OK)
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || info.State.PeerCertificates[0].Subject.CommonName != "alice" || md["token"] == nil {
		t.Errorf("the handler sees %#v and %v", p.AuthInfo, md)
	}

	for name, test := range map[string]struct {
		opts []nearcall.DialOption
		hint string
	}{
		"no certificate":   {[]nearcall.DialOption{nearcall.WithTransportCredentials(credentials.NewTLS(certs.client(nil)))}, "certificate required"},
		"another name":     {[]nearcall.DialOption{mutual, nearcall.WithAuthority("elsewhere.example")}, "elsewhere.example"},
		"an unknown root":  {[]nearcall.DialOption{nearcall.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: x509.NewCertPool()}))}, "unknown authority"},
		"no TLS at all":    {nil, "expects TLS"},
		"insecure for TLS": {[]nearcall.DialOption{nearcall.WithTransportCredentials(insecure.NewCredentials())}, "expects TLS"},
	} {
		err := <-invoke(t.Context(), dial(t, lis.Target(), test.opts...))
		wantCode(t, err, codes.Unavailable)
		if !strings.Contains(err.Error(), test.hint) {
			t.Errorf("%s: %v does not mention %q", name, err, test.hint)
		}
	}
	inner := listenTCP(t)
	start(t, serve(t, echo{}), tls.NewListener(inner, certs.server(nil)))
	err := <-invoke(t.Context(), dial(t, "tcp:"+inner.Addr().String()))
	if !strings.Contains(err.Error(), "expects TLS") {
		t.Errorf("a plain client of a tls.NewListener: %v", err)
	}

	wantCode(t, <-invoke(t.Context(), client), codes.OK)
	wantCode(t, <-invoke(t.Context(), dial(t, lis.Target(), mutual, nearcall.WithAuthority("localhost"))), codes.OK)
}

// token is a per-RPC credential.
type token struct{}

func (token) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"token": "1"}, nil
}

func (token) RequireTransportSecurity() bool { return true }

func TestCredentialsThatDoNotFitAreRefused(t *testing.T) {
	plain := nearcall.WithTransportCredentials(insecure.NewCredentials())
	named := insecure.NewCredentials()
	for name, test := range map[string]struct {
		target string
		opts   []nearcall.DialOption
		hint   string
	}{
		"a bundle and credentials":         {"tcp:localhost:1", []nearcall.DialOption{plain, nearcall.WithCredentialsBundle(insecure.NewBundle())}, "Bundle"},
		"a secret on a plain connection":   {"tcp:localhost:1", []nearcall.DialOption{nearcall.WithPerRPCCredentials(token{})}, "require transport level security"},
		"a secret and insecure":            {"tcp:host:1", []nearcall.DialOption{plain, nearcall.WithPerRPCCredentials(token{})}, "require transport level security"},
		"a bundle will do":                 {"tcp:host:1", []nearcall.DialOption{nearcall.WithCredentialsBundle(insecure.NewBundle())}, ""},
		"insecure will do":                 {"tcp:host:1", []nearcall.DialOption{nearcall.WithTransportCredentials(named)}, ""},
		"a secret on a unix socket":        {"unix:/tmp/x", []nearcall.DialOption{nearcall.WithPerRPCCredentials(token{})}, ""},
		"insecure on a unix socket, with":  {"unix:/tmp/x", []nearcall.DialOption{plain, nearcall.WithPerRPCCredentials(token{})}, ""},
		"a secret and what is as insecure": {"tcp:host:1", []nearcall.DialOption{nearcall.WithTransportCredentials(newChecking("insecure")), nearcall.WithPerRPCCredentials(token{})}, "require transport level security"},
		"also on a unix socket":            {"unix:/tmp/x", []nearcall.DialOption{nearcall.WithTransportCredentials(newChecking("insecure")), nearcall.WithPerRPCCredentials(token{})}, "require transport level security"},
		"two names":                        {"tcp:host:1", []nearcall.DialOption{nearcall.WithTransportCredentials(credentials.NewTLS(&tls.Config{ServerName: "a"})), nearcall.WithAuthority("b")}, "do not match"},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.HasPrefix(test.target, "unix:") {
				needs.UnixSockets(t)
			}
			conn, err := nearcall.NewClient(test.target, test.opts...)
			if err == nil {
				_ = conn.Close()
			}
			if (err != nil) != (test.hint != "") || err != nil && !strings.Contains(err.Error(), test.hint) {
				t.Error(err)
			}
		})
	}
}

func TestUnixPeersAreKnown(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the system does not say who they are")
	}
	for _, network := range networks("unix") {
		var p, server peer.Peer
		var md metadata.MD
		lis := listen(t, targetFor(t, network))
		start(t, serve(t, seen(&p, &md)), lis)
		client := dial(t, lis.Target(), over(network, nearcall.WithPerRPCCredentials(token{}))...)
		wantCode(t, <-invoke(t.Context(), client, grpc.Peer(&server)), codes.OK)
		for side, p := range map[string]peer.Peer{"client": p, "server": server} {
			who, ok := p.AuthInfo.(nearcall.UnixAuthInfo)
			if !ok || who.PID != os.Getpid() || int(who.UID) != os.Getuid() || int(who.GID) != os.Getgid() || who.AuthType() != "local" {
				t.Errorf("over %s the %s is %#v", network, side, p.AuthInfo)
			}
			if p.Addr.Network() != addressedAs(network) || p.LocalAddr.Network() != addressedAs(network) {
				t.Errorf("over %s the %s is at %s, seen from %s", network, side, p.Addr.Network(), p.LocalAddr.Network())
			}
		}
		if md["token"] == nil {
			t.Errorf("over %s the credentials were not sent", network)
		}
	}
}

// overGRPC returns a grpc-go client of e over TLS.
func overGRPC(t *testing.T, e echo, certs certificates) testpb.TestServiceClient {
	t.Helper()
	lis := listenTCP(t)
	startGRPC(t, lis, e, grpc.Creds(credentials.NewTLS(certs.server(nil))))
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(certs.client(nil))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return testpb.NewTestServiceClient(conn)
}

// asked is a per-RPC credential that counts its requests.
type asked struct {
	token
	n *int
}

func (a asked) GetRequestMetadata(ctx context.Context, uri ...string) (map[string]string, error) {
	*a.n++
	return a.token.GetRequestMetadata(ctx, uri...)
}

func TestAnAuthorityOfACallIsHeldToTheCertificate(t *testing.T) {
	certs := newCertificates(t)
	var p peer.Peer
	var md metadata.MD
	lis := listen(t, "tcp:127.0.0.1:0")
	start(t, serve(t, seen(&p, &md), nearcall.Creds(credentials.NewTLS(certs.server(nil)))), lis)
	near := dial(t, lis.Target(), nearcall.WithTransportCredentials(credentials.NewTLS(certs.client(nil))))
	oracle := overGRPC(t, seen(&p, &md), certs)

	type result struct {
		unary, stream *status.Status
		authority     string
		asked         int
	}
	call := func(client testpb.TestServiceClient, authority string) (r result) {
		md = nil
		opts := []grpc.CallOption{grpc.CallAuthority(authority), grpc.PerRPCCredentials(asked{n: &r.asked}), grpc.WaitForReady(true)}
		_, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{}, opts...)
		r.unary = status.Convert(err)
		r.authority = ""
		if a := md[":authority"]; len(a) > 0 {
			r.authority = a[0]
		}
		s, err := client.FullDuplexCall(t.Context(), opts...)
		if err == nil {
			_ = s.CloseSend()
			if _, err = s.Recv(); err == io.EOF {
				err = nil
			}
		}
		r.stream = status.Convert(err)
		return r
	}
	for authority, want := range map[string]codes.Code{
		"localhost":         codes.OK,
		"LOCALHOST:1":       codes.OK,
		"127.0.0.1":         codes.OK,
		"127.0.0.1:80":      codes.OK,
		"elsewhere.example": codes.Unavailable,
		"localhost.":        codes.OK,
		"10.0.0.1":          codes.Unavailable,
		"a.localhost:443":   codes.Unavailable,
		":443":              codes.Unavailable,
	} {
		got, grpcs := call(near, authority), call(oracle, authority)
		if got.unary.String() != grpcs.unary.String() || got.stream.String() != grpcs.stream.String() || got.authority != grpcs.authority || got.asked != grpcs.asked {
			t.Errorf("%q: %v,\ngrpc-go has %v", authority, got, grpcs)
		}
		if got.unary.Code() != want || got.stream.Code() != want {
			t.Errorf("%q: %v, want %v", authority, got, want)
		}
	}
	if r := call(near, ""); r.unary.Code() != codes.OK {
		t.Errorf("without an authority of its own: %v", r)
	}
}

// On every path the status of a call ended by Stop has the server's message once, not
// nested in another status.
func TestACallThatAStopEndsHasOneStatus(t *testing.T) {
	e, running, release := waiting()
	defer close(release)
	srv := serve(t, e)
	near, _ := connect(t, srv)
	calls := map[string]<-chan error{"the server was stopped": invoke(t.Context(), near)}
	for _, network := range available(t, networks("unix")...) {
		target := targetFor(t, network)
		start(t, srv, listen(t, target))
		calls[target+": the server was stopped"] = invoke(t.Context(), dial(t, target, over(network)...))
	}
	for range calls {
		outcome(t, "the handler's begin", running)
	}
	srv.Stop()
	for want, call := range calls {
		if st := status.Convert(<-call); st.Code() != codes.Unavailable || st.Message() != want {
			t.Errorf("got %v, want %q", st, want)
		}
	}
}

func TestAnyAuthorityOfACallIsTakenWithoutACertificate(t *testing.T) {
	var p peer.Peer
	var md metadata.MD
	srv := serve(t, seen(&p, &md))
	tcp := listen(t, "tcp:127.0.0.1:0")
	start(t, srv, tcp)
	inproc, _ := connect(t, srv)
	clients := map[string]testpb.TestServiceClient{
		"in process": inproc,
		"tcp":        dial(t, tcp.Target()),
	}
	for _, network := range available(t, networks("unix")...) {
		target := targetFor(t, network)
		start(t, srv, listen(t, target))
		clients[network] = dial(t, target, over(network)...)
		if network == "unix" { // a wrapped connection, whose peer process is unknown
			clients["unix, with a dialer"] = dial(t, target, nearcall.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				c, err := new(net.Dialer).DialContext(ctx, "unix", target[len("unix:"):])
				return struct{ net.Conn }{c}, err
			}))
		}
	}
	for name, client := range clients {
		wantCode(t, <-invoke(t.Context(), client, grpc.CallAuthority("elsewhere.example")), codes.OK)
		if a := md[":authority"]; len(a) != 1 || a[0] != "elsewhere.example" {
			t.Errorf("%s: the handler sees %q", name, a)
		}
	}
}

// A name can contain any character; the authority that handlers see is escaped.
func TestTheAuthorityOfANameHasNoControlCharacters(t *testing.T) {
	var p peer.Peer
	var md metadata.MD
	lis := listen(t, "inproc:the authority\n of "+t.Name())
	start(t, serve(t, seen(&p, &md)), lis)
	if _, err := dial(t, lis.Target()).UnaryCall(t.Context(), &testpb.SimpleRequest{}); err != nil {
		t.Fatal(err)
	}
	if got, want := md[":authority"], "the%20authority%0A%20of%20"+t.Name(); len(got) != 1 || got[0] != want {
		t.Errorf("%q, want %q", got, want)
	}
}
