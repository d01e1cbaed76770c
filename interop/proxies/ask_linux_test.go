package proxies

import (
	"crypto/tls"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall/internal/testing/asking"
)

// TestProxiesAreAsked: a client that asks which protocol they speak, in plaintext or within TLS, goes
// on with calls of gRPC over the same connection.
func TestProxiesAreAsked(t *testing.T) {
	overNginx, overCaddy := nginx, caddy
	overNginx.configure = func(p *proxy, text string) string {
		return p.replace(nginx.configure(p, text), "listen "+p.http+";", "listen "+p.http+" http2;")
	}
	overCaddy.configure = func(p *proxy, text string) string {
		return p.replace(caddy.configure(p, text), "auto_https off\n", "auto_https off\n\tservers {\n\t\tprotocols h1 h2 h2c\n\t}\n")
	}
	for _, c := range []struct {
		kind    *kind
		changes []string // for HTTP/2 to the server
	}{
		{&overNginx, []string{"proxy_pass http://calls;", "grpc_pass grpc://calls;"}},
		{&overCaddy, []string{"reverse_proxy ", "reverse_proxy h2c://"}},
	} {
		t.Run(c.kind.name, func(t *testing.T) {
			s := serve(t, "tcp:127.0.0.1:0")
			p := c.kind.start(t, s.address, c.changes...)
			for address, creds := range map[string]credentials.TransportCredentials{
				p.http: insecure.NewCredentials(), p.https: credentials.NewTLS(&tls.Config{RootCAs: p.cert.roots, ServerName: "localhost"}),
			} {
				asks, answers := asking.With(creds)
				conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(asks))
				if err != nil {
					t.Fatal(err)
				}
				client := testpb.NewTestServiceClient(conn)
				for i := range 100 {
					sent := strings.Repeat("x", i*1000)
					reply, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: &testpb.Payload{Body: []byte(sent)}})
					if err != nil || string(reply.GetPayload().GetBody()) != sent {
						t.Fatalf("call %d: %d bytes, %v", i, len(reply.GetPayload().GetBody()), err)
					}
				}
				if a := <-answers; a.Native || a.Err != nil || len(answers) > 0 {
					t.Errorf("the first of %d answers is %+v", len(answers)+1, a)
				}
				_ = conn.Close()
			}
		})
	}
}
