package promises

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/stats"
)

// A line has the connections of one client, and counts them. It implements [stats.Handler] for the
// clients that tell it of their connections.
type line struct {
	mu           sync.Mutex
	begun, ended int
	silent       bool
	conns        []net.Conn
}

func (l *line) count(begun, ended int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun += begun
	l.ended += ended
}

// counts returns how many connections have begun and how many have ended.
func (l *line) counts() (begun, ended int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.begun, l.ended
}

func (*line) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (*line) HandleRPC(context.Context, stats.RPCStats)                         {}
func (*line) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (l *line) HandleConn(_ context.Context, s stats.ConnStats) {
	if _, ok := s.(*stats.ConnBegin); ok {
		l.count(1, 0)
	} else {
		l.count(0, 1)
	}
}

// dialAddress opens a connection to an address that a dialer of gRPC's gets.
func (l *line) dialAddress(ctx context.Context, address string) (net.Conn, error) {
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		return l.dial(ctx, "unix", path)
	}
	return l.dial(ctx, "tcp", address)
}

func (l *line) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns = append(l.conns, conn)
	return &lineConn{Conn: conn, line: l}, nil
}

// silence drops what the client sends from now on, even that it closes a connection.
func (l *line) silence() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.silent = true
}

// end closes all connections.
func (l *line) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		_ = c.Close()
	}
}

func (l *line) isSilent() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.silent
}

type lineConn struct {
	net.Conn
	line *line
}

func (c *lineConn) Write(b []byte) (int, error) {
	if c.line.isSilent() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *lineConn) Close() error {
	if c.line.isSilent() {
		return c.Conn.SetReadDeadline(time.Unix(1, 0)) // the client's reads end
	}
	return c.Conn.Close()
}

// certificate returns a certificate of localhost that names alice, and is its own authority.
func certificate() (tls.Certificate, *x509.CertPool) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "alice"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}, &x509.Certificate{Subject: pkix.Name{CommonName: "alice"}}, key.Public(), key)
	if err != nil {
		panic(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, roots
}
