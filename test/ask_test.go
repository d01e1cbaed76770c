package test

import (
	"crypto/tls"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/asking"
)

// offers returns credentials of NewTLS that offer nearcall's protocol by ALPN.
func offers(t *testing.T, config *tls.Config) credentials.TransportCredentials {
	c, ok := nearcall.NewTLS(config).(interface {
		OfferNearcall() credentials.TransportCredentials
	})
	if !ok {
		t.Fatal("the credentials of NewTLS cannot offer nearcall's protocol")
	}
	return c.OfferNearcall()
}

// TestTLSAgreesOnTheProtocol if both sides know its name. Otherwise it agrees on h2, and the client
// asks.
func TestTLSAgreesOnTheProtocol(t *testing.T) {
	certs := newCertificates(t)
	own := certs.server(nil)
	own.NextProtos = nil
	config := certs.client(nil)
	both := config.Clone()
	both.NextProtos = []string{"h2", "http/1.1"}
	for _, serverName := range []string{"NewTLS", "credentials.NewTLS", "tls.NewListener"} {
		for clientName, c := range map[string]struct {
			creds credentials.TransportCredentials
			want  string // with a server of NewTLS
		}{
			"offers":             {offers(t, config), "nearcall/1"},
			"offers a clone":     {offers(t, config).Clone(), "nearcall/1"},
			"offers as told":     {offers(t, both), "h2"},
			"NewTLS":             {nearcall.NewTLS(config), "nearcall/1"},
			"credentials.NewTLS": {credentials.NewTLS(config), "h2"},
		} {
			t.Run(clientName+" to "+serverName, func(t *testing.T) {
				var p peer.Peer
				var md metadata.MD
				var opts []nearcall.ServerOption
				lis, want := listenTCP(t), "h2"
				target := "tcp:" + lis.Addr().String()
				switch serverName {
				case "NewTLS":
					opts, want = append(opts, nearcall.Creds(nearcall.NewTLS(own))), c.want
				case "credentials.NewTLS":
					opts = append(opts, nearcall.Creds(credentials.NewTLS(own)))
				default:
					lis = tls.NewListener(lis, certs.server(nil))
				}
				start(t, serve(t, seen(&p, &md), opts...), lis)
				wantCode(t, <-invoke(t.Context(), dial(t, target, nearcall.WithTransportCredentials(c.creds))), codes.OK)
				if ua := md.Get("user-agent")[0]; !strings.HasPrefix(ua, "nearcall/") {
					t.Errorf("the client takes it for an ordinary gRPC server: it calls as %q", ua)
				}
				if info, ok := p.AuthInfo.(credentials.TLSInfo); !ok || info.State.NegotiatedProtocol != want {
					t.Errorf("the handler sees %#v, want %s", p.AuthInfo, want)
				}
			})
		}
	}
}

// TestTargetsOfTCPOfferTheProtocol, and servers that do not know it agree on h2.
func TestTargetsOfTCPOfferTheProtocol(t *testing.T) {
	certs := newCertificates(t)
	old := certs.server(nil) // which names h2
	own := old.Clone()
	own.NextProtos = nil
	chosen := own.Clone()
	chosen.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return own, nil }
	for want, configs := range map[string][]*tls.Config{"nearcall/1": {own, chosen}, "h2": {old}} {
		for _, config := range configs {
			var p peer.Peer
			var md metadata.MD
			lis := listen(t, "tcp:127.0.0.1:0")
			start(t, serve(t, seen(&p, &md), nearcall.Creds(nearcall.NewTLS(config))), lis)
			wantCode(t, <-invoke(t.Context(), dial(t, lis.Target(), nearcall.WithTransportCredentials(nearcall.NewTLS(certs.client(nil))))), codes.OK)
			if info, ok := p.AuthInfo.(credentials.TLSInfo); !ok || info.State.NegotiatedProtocol != want {
				t.Errorf("the handler sees %#v, want %s", p.AuthInfo, want)
			}
		}
	}
}

// TestWhatTLSHasAgreedOnIsSpoken: a client that has agreed on nearcall's protocol and speaks another
// is refused in words.
func TestWhatTLSHasAgreedOnIsSpoken(t *testing.T) {
	certs := newCertificates(t)
	config := certs.server(nil)
	config.NextProtos = nil
	lis := listen(t, "tcp:127.0.0.1:0")
	start(t, serve(t, echo{}, nearcall.Creds(nearcall.NewTLS(config))), lis)
	client := certs.client(nil)
	client.ServerName, client.NextProtos = "localhost", []string{"nearcall/1"}
	for _, first := range []string{preface + noSettings, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", preface + "\x00\x00\x06\x04\x00\x00\x00\x00\x00nc\x00\x00\x00\x01", "noise"} {
		conn, err := tls.Dial("tcp", lis.Addr().String(), client)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, first)
		said, _ := io.ReadAll(conn)
		if !strings.HasPrefix(string(said), "nearcall/1\n") || !strings.Contains(string(said), "must speak that") {
			t.Errorf("%q is answered with %q", first, said)
		}
		_ = conn.Close()
	}
}

// TestAnOrdinaryServerIsAsked: grpc-go's client goes on over the same connection.
func TestAnOrdinaryServerIsAsked(t *testing.T) {
	hold(t)
	certs := newCertificates(t)
	for name, c := range map[string]struct {
		server []grpc.ServerOption
		client credentials.TransportCredentials
	}{
		"plain":  {nil, insecure.NewCredentials()},
		"TLS":    {[]grpc.ServerOption{grpc.Creds(credentials.NewTLS(certs.server(nil)))}, credentials.NewTLS(certs.client(nil))},
		"offers": {[]grpc.ServerOption{grpc.Creds(credentials.NewTLS(certs.server(nil)))}, offers(t, certs.client(nil))},
	} {
		t.Run(name, func(t *testing.T) {
			lis := listenTCP(t)
			startGRPC(t, lis, echo{}, c.server...)
			creds, answers := asking.With(c.client)
			conn, err := grpc.NewClient("passthrough:///"+lis.Addr().String(), grpc.WithTransportCredentials(creds), grpc.WithAuthority("localhost"))
			if err != nil {
				t.Fatal(err)
			}
			client := testpb.NewTestServiceClient(conn)
			for range 50 {
				wantCode(t, <-invoke(t.Context(), client), codes.OK)
			}
			large := &testpb.SimpleRequest{Payload: payload(1 << 20)}
			if reply, err := client.UnaryCall(t.Context(), large); err != nil || len(reply.GetPayload().GetBody()) != 1<<20 {
				t.Errorf("%d bytes, %v", len(reply.GetPayload().GetBody()), err)
			}
			if len(answers) != 1 || (<-answers).Native {
				t.Error("the client has asked more than once, or takes it for a server of nearcall")
			}
			_ = conn.Close()
		})
	}
}
