package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

// certificate writes a certificate for shop.example, which is its own authority, and its key.
func certificate(t *testing.T) (certFile, keyFile string, pair tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "shop.example"}, DNSNames: []string{"shop.example"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	dir := tempDir(t)
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, content := range map[string][]byte{certFile: certPEM, keyFile: keyPEM} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if pair, err = tls.X509KeyPair(certPEM, keyPEM); err != nil {
		t.Fatal(err)
	}
	return certFile, keyFile, pair
}

// TestTLSFlags checks the flags against servers that demand a client certificate.
func TestTLSFlags(t *testing.T) {
	cert, key, pair := certificate(t)
	pool := x509.NewCertPool()
	text, err := os.ReadFile(cert)
	if err != nil || !pool.AppendCertsFromPEM(text) {
		t.Fatal("the certificate is not in its file: ", err)
	}
	creds := func(auth tls.ClientAuthType) credentials.TransportCredentials {
		return credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: auth})
	}
	for name, serve := range map[string]func(*testing.T, tls.ClientAuthType) string{
		"tcp": func(t *testing.T, auth tls.ClientAuthType) string {
			return serveNear(t, "tcp:127.0.0.1:0", withShop, nearcall.Creds(creds(auth)))
		},
		"wss": func(t *testing.T, auth tls.ClientAuthType) string {
			config := &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: auth}
			return serveNear(t, "wss://127.0.0.1:0/calls", withShop, nearcall.Creds(nearcall.NewTLS(config)))
		},
		"quic": func(t *testing.T, auth tls.ClientAuthType) string {
			needs.UDP(t)
			config := &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: auth}
			return serveNear(t, "quic:127.0.0.1:0", withShop, nearcall.Creds(nearcall.NewTLS(config)))
		},
		"grpc": func(t *testing.T, auth tls.ClientAuthType) string {
			return serveFar(t, withShop, grpc.Creds(creds(auth)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			target, strict := serve(t, tls.NoClientCert), serve(t, tls.RequireAndVerifyClientCert)
			for _, args := range [][]string{
				{"-cacert", cert, "-servername", "shop.example", target},
				{"-insecure", target},
				{"-insecure", "-cert", cert, "-key", key, strict},
				{"-cacert", cert, "-servername", "shop.example", "-cert", cert, "-key", key, strict},
			} {
				if got := succeeds(t, append([]string{"list"}, args...)...); !strings.Contains(got, orders) {
					t.Errorf("%q: it lists %q", args, got)
				}
			}
			for _, args := range [][]string{
				{"-cacert", cert, target}, // the certificate does not name the address
				{"-servername", "shop.example", target},
				{"-insecure", strict},
				{target},
			} {
				code, stdout, stderr := nearcallCommand(t, append([]string{"list", "-max-time", "10"}, args...)...)
				if code != 64+14 || stdout != "" {
					t.Errorf("%q: exit code %d, stdout %q, stderr %q", args, code, stdout, stderr)
				}
			}
		})
	}
}

func TestAServerWithoutTLSIsExplained(t *testing.T) {
	fails(t, 2, "-plaintext contradicts wss:", "list", "-plaintext", "wss://localhost:1/")
	fails(t, 2, "-plaintext contradicts quic:", "list", "-plaintext", "quic:localhost:1")
	fails(t, 2, "write wss:", "list", "-insecure", "ws://localhost:1/")
	fails(t, 2, "write wss:, or allow that with -plaintext", "list", "ws://localhost.evil.org:1/")
	fails(t, 2, "write wss:, or allow that with -plaintext", "list", "ws://me@10.0.0.1:1/")
	for _, target := range []string{serveFar(t, withShop), onOne(t)} {
		fails(t, 64+14, "; the server has no TLS, and -plaintext does without\n", "list", "-insecure", target)
		fails(t, 64+14, "; the server has no TLS, and -plaintext does without\n", "proxy", "-insecure", "tcp:127.0.0.1:0", target)
	}
	fails(t, 64+14, "; write ws:\n", "list", strings.Replace(serveNear(t, "ws://127.0.0.1:0/", withShop), "ws:", "wss:", 1))
}

// TestErrorsNameTheFlags checks that errors name flags of the command, and no options of a Go program.
func TestErrorsNameTheFlags(t *testing.T) {
	cert, key, pair := certificate(t)
	config := &tls.Config{Certificates: []tls.Certificate{pair}}
	strict := config.Clone()
	strict.ClientAuth = tls.RequireAnyClientCert
	own := strings.TrimPrefix(serveNear(t, "tcp:127.0.0.1:0", withShop, nearcall.Creds(nearcall.NewTLS(config))), "tcp:")
	strange := strings.TrimPrefix(serveNear(t, "tcp:127.0.0.1:0", withShop, nearcall.Creds(nearcall.NewTLS(strict))), "tcp:")
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"tcp:" + own}, 64 + 14, `the server expects TLS"; use -cacert, -servername or -insecure` + "\n"},
		{[]string{own}, 64 + 14, `the server expects TLS"; use -cacert, -servername or -insecure` + "\n"},
		{[]string{"ws://" + own}, 64 + 14, "; if the server has TLS, write wss:\n"},
		{[]string{"-servername", "shop.example", "tcp:" + own}, 64 + 14, "; -cacert trusts those of a file, and -insecure any\n"},
		{[]string{"-servername", "shop.example", own}, 64 + 14, "; -cacert trusts those of a file, and -insecure any\n"},
		{[]string{"-cacert", cert, "-servername", "other.example", "tcp:" + own}, 64 + 14, "; -servername expects another name\n"},
		{[]string{"-cacert", cert, "tcp:" + own}, 64 + 14, "; -servername expects a name\n"},
		{[]string{"-insecure", "tcp:" + strange}, 64 + 14, "; -cert and -key give the server one\n"},
		{[]string{"-insecure", strange}, 64 + 14, "; -cert and -key give the server one\n"},
		{[]string{"-cert", cert, "-key", key, "-servername", "a", "-authority", "b", strange}, 2, "-servername a contradicts -authority b"},
		{[]string{"https://" + own}, 2, "is a URL; write tcp:HOST:PORT"},
	} {
		fails(t, c.code, c.says, append([]string{"list"}, c.args...)...)
	}
}

// TestOnlyThisMachineNeedsNoTLS checks for which targets TLS is the default.
func TestOnlyThisMachineNeedsNoTLS(t *testing.T) {
	for target, secure := range map[string]bool{
		"localhost:50051":             false,
		"127.0.0.1:50051":             false,
		"[::1]:50051":                 false,
		"LOCALHOST:50051":             false,
		"tcp:127.0.0.1:50051":         false,
		"tcp:localhost:50051":         false,
		"grpc:localhost:50051":        false,
		"grpc:dns:///localhost:50051": false,
		"dns:localhost:50051":         false,
		"passthrough:///[::1]:1":      false,
		"ipv4:127.0.0.1:1":            false,
		"quic:127.0.0.1:50051":        true,
		"unix:/tmp/s":                 false,
		"unix:///tmp/s":               false,
		"shm:s":                       false,
		"ws://localhost:1/calls":      false,
		"WS://[::1]/":                 false,
		"unix-abstract:s":             false,
		"grpc:unix:/tmp/s":            false,
		"example.com:443":             true,
		"tcp:example.com:443":         true,
		"grpc:dns:///example.com":     true,
		"dns:///localhost.evil.org":   true,
		"dns://127.0.0.1/evil.org:1":  true,
		"ipv4:10.0.0.1:1":             true,
		"ipv4:127.0.0.1:1,10.0.0.1:1": true,
		"xds:///localhost":            true,
		"dns://10.0.0.1/localhost":    true,
		"10.0.0.1:50051":              true,
	} {
		creds, err := new(connFlags).credentials(target)
		if err != nil {
			t.Errorf("%s: %v", target, err)
			continue
		}
		if got := creds != nil && creds.Info().SecurityProtocol == "tls"; got != secure {
			t.Errorf("%s: TLS %v, want %v", target, got, secure)
		}
	}
}

// tempDir returns a directory for files. It is removed at the end of the test as far as the
// system can: Wine cannot remove what T.TempDir makes, and would fail the test.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "nearcall")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
