package test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/nearcall/nearcall"
)

// One port answers HTTPS and nearcall's own clients with the same certificates, if the
// credentials negotiate HTTP/1.1.
func TestAPortAnswersHTTPSAndNearcall(t *testing.T) {
	certs := newCertificates(t)
	var p peer.Peer
	var md metadata.MD
	config := certs.server(certs.roots)
	config.NextProtos = []string{"http/1.1"}
	lis := listen(t, "tcp:127.0.0.1:0")
	start(t, serve(t, seen(&p, &md), nearcall.Creds(credentials.NewTLS(config))), lis)
	wantAlice := func(who string) {
		t.Helper()
		info, ok := p.AuthInfo.(credentials.TLSInfo)
		if !ok || info.State.PeerCertificates[0].Subject.CommonName != "alice" {
			t.Errorf("%s: the handler sees %#v", who, p.AuthInfo)
		}
	}

	transport := &http.Transport{TLSClientConfig: certs.client(&certs.me)}
	defer transport.CloseIdleConnections()
	transport.TLSClientConfig.NextProtos = []string{"http/1.1"}
	resp, err := (&http.Client{Transport: transport}).Post("https://"+lis.Addr().String()+"/grpc.testing.TestService/UnaryCall", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("%s: %s", resp.Status, body)
	}
	wantAlice("HTTPS")
	p = peer.Peer{}
	wantCode(t, <-invoke(t.Context(), dial(t, lis.Target(), nearcall.WithTransportCredentials(credentials.NewTLS(certs.client(&certs.me))))), codes.OK)
	wantAlice("nearcall")
}

// Many clients of HTTP/1.1 offer no protocol in the TLS handshake. A server that names other protocols
// does not take them.
func TestNewTLSTakesHTTP1ClientsWithoutALPN(t *testing.T) {
	certs := newCertificates(t)
	for _, protocols := range [][]string{nil, {"h2"}} {
		config := certs.server(nil)
		config.NextProtos = protocols
		lis := listen(t, "tcp:127.0.0.1:0")
		start(t, serve(t, echo{}, nearcall.Creds(nearcall.NewTLS(config))), lis)
		transport := &http.Transport{TLSClientConfig: certs.client(nil), Protocols: new(http.Protocols)}
		defer transport.CloseIdleConnections()
		transport.TLSClientConfig.NextProtos = nil
		transport.Protocols.SetHTTP1(true)
		resp, err := (&http.Client{Transport: transport}).Post("https://"+lis.Addr().String()+"/grpc.testing.TestService/UnaryCall", "application/json", strings.NewReader("{}"))
		if protocols != nil {
			if err == nil {
				t.Errorf("a server of %q answers with %s", protocols, resp.Status)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK || resp.TLS.NegotiatedProtocol != "" {
			t.Errorf("%s, after %q: %s", resp.Status, resp.TLS.NegotiatedProtocol, body)
		}
	}
}
