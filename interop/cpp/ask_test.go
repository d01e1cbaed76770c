package cpptest

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/sniff"
	"github.com/nearcall/nearcall/interop/cpp/echopb"
)

// ask asks the server of conn for its protocol, which must be nearcall's.
func ask(ctx context.Context, t *testing.T, conn net.Conn) (net.Conn, error) {
	over, native, err := sniff.Ask(ctx, conn, nil)
	if err != nil || !native {
		t.Errorf("the server is taken for one of ordinary gRPC: %v", err)
	}
	return over, err
}

// TestAServerIsAsked on every path, and the connection goes on as any other.
func TestAServerIsAsked(t *testing.T) {
	config := &tls.Config{RootCAs: certificates.pool}
	offers := nearcall.NewTLS(config).(interface {
		OfferNearcall() credentials.TransportCredentials
	}).OfferNearcall()
	for _, transport := range transports {
		for protocol, creds := range map[string]credentials.TransportCredentials{"h2": credentials.NewTLS(config), "nearcall/1": offers} {
			if transport != "tls" && protocol != "h2" {
				continue // there is no TLS
			}
			t.Run(transport+" "+protocol, func(t *testing.T) {
				at := startCPP(t, transport)
				dialled, secure := at, nearcall.WithTransportCredentials(insecure.NewCredentials())
				if transport == "tls" {
					_, address, _ := strings.Cut(at, ":")
					secure, dialled = nearcall.WithTransportCredentials(creds), "tcp:"+address
				}
				opts := []nearcall.DialOption{secure}
				if transport == "unix" {
					opts = append(opts, nearcall.WithDisableSharedMemory())
				}
				conn, err := nearcall.NewClient(dialled, opts...)
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				var p peer.Peer
				for range 10 {
					if _, err := echopb.NewEchoClient(conn).Unary(t.Context(), &echopb.Message{Data: make([]byte, 100_000)}, grpc.Peer(&p)); err != nil {
						t.Fatal(err)
					}
				}
				if got := p.Addr.Network(); got != strings.Replace(transport, "tls", "tcp", 1) {
					t.Errorf("the calls went over %s", got)
				}
				if info, ok := p.AuthInfo.(credentials.TLSInfo); transport == "tls" && (!ok || info.State.NegotiatedProtocol != protocol) {
					t.Errorf("the connection is %#v, want one of %s", p.AuthInfo, protocol)
				}
			})
		}
	}
}

// TestAServerIsAskedOnce: after the answer, and after ALPN has agreed on nearcall's protocol, a server
// refuses anything else in words.
func TestAServerIsAskedOnce(t *testing.T) {
	const http2 = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	for _, transport := range transports {
		t.Run(transport, func(t *testing.T) {
			at := startCPP(t, transport)
			_, address, _ := strings.Cut(at, ":")
			var conn net.Conn
			var err error
			switch transport {
			case "tls":
				conn, err = tls.Dial("tcp", address, &tls.Config{RootCAs: certificates.pool, NextProtos: []string{"nearcall/1", "h2"}})
			case "tcp":
				conn, err = net.Dial("tcp", address)
			default:
				conn, err = net.Dial("unix", address)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if transport != "tls" {
				if _, err := ask(t.Context(), t, conn); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := io.WriteString(conn, http2); err != nil {
				t.Fatal(err)
			}
			said, _ := io.ReadAll(conn)
			want := "does not speak nearcall: it sent PRI"
			if transport == "shm" {
				want = "over shared memory only"
			}
			if !strings.HasPrefix(string(said), "nearcall/1\n") || !strings.Contains(string(said), want) {
				t.Errorf("the server says %q", said)
			}
		})
	}
}
