package test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/nearcall/nearcall"
)

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
