package link_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/link"
)

// TestTLSInfoIsThatOfGRPC compares TLSInfo with what grpc-go's credentials make of the same
// handshake, for certificates with all kinds of URIs.
func TestTLSInfoIsThatOfGRPC(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	with := 0
	for _, uris := range [][]string{
		nil,
		{"spiffe://shop.example/a"},
		{"spiffe://shop.example/a", "spiffe://shop.example/b"},
		{"https://shop.example/", "spiffe://shop.example/a"},
		{"https://shop.example/"},
		{"spiffe://shop.example"},
		{"spiffe:///a"},
		{"spiffe:shop.example"},
		{"spiffe://me@shop.example/a"},
		{"spiffe://:secret@shop.example/a"},
		{"SPIFFE://shop.example/a"},
		{"spiffe://shop.example:8080/a?b=c"},
		{"spiffe://" + strings.Repeat("a", 255) + "/a"},
		{"spiffe://" + strings.Repeat("a", 256) + "/a"},
		{"spiffe://shop.example/" + strings.Repeat("a", 2048-len("spiffe://shop.example/"))},
		{"spiffe://shop.example/" + strings.Repeat("a", 2049-len("spiffe://shop.example/"))},
	} {
		cert := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
		for _, text := range uris {
			u, err := url.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			cert.URIs = append(cert.URIs, u)
		}
		der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		here, there := net.Pipe()
		go func() {
			defer there.Close()
			server := credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
			_, _, _ = server.ServerHandshake(there)
		}()
		conn, auth, err := credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}).ClientHandshake(t.Context(), "shop.example", here)
		if err != nil {
			t.Fatalf("%.100q: %v", uris, err)
		}
		_ = conn.Close()
		want := auth.(credentials.TLSInfo)
		got := link.TLSInfo(want.State)
		got.State, want.State = tls.ConnectionState{}, tls.ConnectionState{}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%.100q: %v, want %v", uris, got, want)
		}
		if want.SPIFFEID != nil {
			with++
		}
	}
	if with < 4 {
		t.Errorf("only %d certificates have a SPIFFE ID", with)
	}
}

func TestHostOfAnAuthority(t *testing.T) {
	for authority, want := range map[string]string{"a.example:443": "a.example", "a.example": "a.example", "[::1]:443": "::1", "::1": "::1", "": ""} {
		if got := link.HostOf(authority); got != want {
			t.Errorf("HostOf(%q) is %q, want %q", authority, got, want)
		}
	}
}
