package quic

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quic-go/quic-go/testutils/simnet"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/registry"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/testing/transporttest"
)

func TestMain(m *testing.M) { runTests(m) }

var runTests = leak.Main // of package attack on Linux

// testTLS returns the configurations of a server and of a client that have certificates which
// both trust.
func testTLS() (server, client *tls.Config) {
	s, c := makeTLS()
	return s.Clone(), c.Clone()
}

var makeTLS = sync.OnceValues(func() (server, client *tls.Config) {
	both := []byte(testCertificate())
	pair, err := tls.X509KeyPair(both, both)
	if err != nil {
		panic(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(pair.Leaf)
	return &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool},
		&tls.Config{RootCAs: pool, ServerName: "server.test", Certificates: []tls.Certificate{pair}}
})

// certificateVariable is the environment variable with the certificate of a child process.
const certificateVariable = "NEARCALL_TEST_CERTIFICATE"

// testCertificate returns the certificate of this process and its key, in PEM: those of the parent
// process, or new ones.
var testCertificate = sync.OnceValue(func() string {
	if s, ok := os.LookupEnv(certificateVariable); ok {
		return s
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, DNSNames: []string{"server.test"},
		NotAfter: time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC), IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		panic(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		panic(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})) +
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
})

// A network is a simulated one, with a listener and any number of dialers, for use in a synctest
// bubble.
type network struct {
	router *simnet.PerfectRouter
	server *net.UDPAddr
	lis    *listener
	next   int
}

func serverOptions(opts ...nearcall.ServerOption) *options.Connections {
	return &options.NewServer(opts).Connections
}

func clientOptions(opts ...nearcall.DialOption) *options.Connections {
	return &options.NewClient(opts).Connections
}

// newNetwork returns a network whose listener passes sessions to accept.
func newNetwork(t *testing.T, s *registry.Settings, accept func(link.Session) link.Acceptor) *network {
	n := plainNetwork(t)
	s.TLS, _ = testTLS()
	s.Config = cmp.Or(s.Config, serverOptions())
	if err := n.lis.Configure(s); err != nil {
		t.Fatal(err)
	}
	served := make(chan error)
	go func() { served <- n.lis.Sessions(accept) }()
	t.Cleanup(func() {
		_ = n.lis.Close()
		if err := <-served; err != nil {
			t.Errorf("Sessions: %v", err)
		}
	})
	return n
}

// plainNetwork returns a network whose listener nobody serves.
func plainNetwork(t *testing.T) *network {
	n := &network{router: &simnet.PerfectRouter{}, server: &net.UDPAddr{IP: net.IPv4(1, 0, 0, 1).To4(), Port: 1}}
	n.lis = n.listener()
	t.Cleanup(func() {
		time.Sleep(time.Minute) // until the connections have ended
		synctest.Wait()
	})
	return n
}

// listener returns a listener at the server's address.
func (n *network) listener() *listener {
	return newListener(simnet.NewSimConn(n.server, n.router), "quic:1.0.0.1:1")
}

// dialer returns a dialer, each of whose connections has its own address.
func (n *network) dialer(t *testing.T, s *registry.Settings) *dialer {
	if s.TLS == nil {
		_, s.TLS = testTLS()
	}
	s.Config = cmp.Or(s.Config, clientOptions())
	made, err := newDialer("quic:1.0.0.1:1", n.server.String(), s)
	if err != nil {
		t.Fatal(err)
	}
	d := made.(*dialer)
	d.listen = func() (net.PacketConn, error) {
		n.next++
		return simnet.NewSimConn(&net.UDPAddr{IP: net.IPv4(1, 0, 0, 2).To4(), Port: n.next}, n.router), nil
	}
	return d
}

// dial returns the client's session of a new connection.
func (n *network) dial(t *testing.T, s *registry.Settings) *session {
	c, err := n.dialer(t, s).Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(errors.New("the test is over")) })
	return c.(*session)
}

func TestStreams(t *testing.T) {
	transporttest.Suite{
		Connect: func(t *testing.T, deadline time.Time) (caller, callee link.Stream) {
			accepted := make(transporttest.Accepter, 1)
			s := &registry.Settings{Config: serverOptions(nearcall.InitialWindowSize(64 << 10))}
			n := newNetwork(t, s, func(link.Session) link.Acceptor { return accepted })
			c := n.dial(t, &registry.Settings{Config: clientOptions(nearcall.WithInitialWindowSize(64 << 10))})
			caller, err := c.NewStream(t.Context(), &link.CallHeader{Method: "/a/b", Profile: &link.Profile{}, Deadline: deadline})
			if err != nil {
				t.Fatal(err)
			}
			return caller, <-accepted
		},
		Window: 64 << 10, // QUIC has one, and the inbox as much
		Codec:  codec.Proto(),
	}.Run(t)
}
