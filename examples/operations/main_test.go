//go:build linux

package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	pb "github.com/nearcall/nearcall/examples/quickstart/greetpb"
	"github.com/nearcall/nearcall/internal/testing/leak"
)

const beTheProgram = "NEARCALL_TEST_OPERATIONS"

func TestMain(m *testing.M) {
	if os.Getenv(beTheProgram) != "" {
		main()
		return
	}
	leak.Main(m)
}

// A process runs the program.
type process struct {
	*exec.Cmd
	said strings.Builder
}

// run starts the program, and returns when it listens at address.
func run(t *testing.T, address string, args ...string) *process {
	t.Helper()
	before := listeners(t, address)
	p := start(t, exec.Command(os.Args[0], append([]string{"-listen", address}, args...)...))
	leak.Eventually(t, "the program listens", func() bool { return listeners(t, address) > before })
	return p
}

func start(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{Cmd: cmd}
	p.Env = append(os.Environ(), beTheProgram+"=1", "GORACE=atexit_sleep_ms=0")
	p.Stderr = &p.said
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.end(t) })
	return p
}

// end stops the program as service managers do. It may be called twice.
func (p *process) end(t *testing.T) {
	t.Helper()
	if p.ProcessState != nil {
		return
	}
	_ = p.Process.Signal(syscall.SIGTERM)
	if err := p.Wait(); err != nil {
		t.Errorf("the program ends with %v, and says %q", err, &p.said)
	}
}

// listeners returns how many sockets listen at an address.
func listeners(t *testing.T, address string) (n int) {
	t.Helper()
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	a, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	const listening = " 00000000:0000 0A "
	return strings.Count(string(table), fmt.Sprintf("%04X", a.Port)+listening)
}

// freeAddress returns an address that nobody listens at.
func freeAddress(t *testing.T) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	return lis.Addr().String()
}

func dial(t *testing.T, target string, opts ...nearcall.DialOption) *nearcall.ClientConn {
	t.Helper()
	conn, err := nearcall.NewClient(target, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func greet(conn grpc.ClientConnInterface, opts ...grpc.CallOption) error {
	_, err := pb.NewGreeterClient(conn).Greet(context.Background(), &pb.GreetRequest{Name: "world"}, opts...)
	return err
}

// probed reports what a probe sees, which is an ordinary gRPC client.
func probed(t *testing.T, address string) (healthpb.HealthCheckResponse_ServingStatus, error) {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	r, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true))
	return r.GetStatus(), err
}

func TestASuccessorOnTheSamePortLosesNoCall(t *testing.T) {
	address := freeAddress(t)
	old := run(t, address)
	conn := dial(t, "tcp:"+address, nearcall.WithDefaultServiceConfig(`{"methodConfig": [{"name": [{}], "retryPolicy": {
		"maxAttempts": 3, "initialBackoff": "0.01s", "maxBackoff": "0.1s", "backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]}}]}`))
	stop, failed := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				failed <- nil
				return
			default:
			}
			if err := greet(conn); err != nil {
				failed <- err
				return
			}
		}
	}()
	for range 3 {
		successor := run(t, address)
		old.end(t)
		old = successor
	}
	close(stop)
	if err := <-failed; err != nil {
		t.Errorf("a call failed during a restart: %v", err)
	}
}

func TestProbesSeeThatTheServerDrains(t *testing.T) {
	address := freeAddress(t)
	p := run(t, address, "-notice", "1h")
	if s, err := probed(t, address); err != nil || s != healthpb.HealthCheckResponse_SERVING {
		t.Fatalf("the probe sees %v, %v", s, err)
	}
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	leak.Eventually(t, "the probe fails", func() bool {
		s, err := probed(t, address)
		return err == nil && s == healthpb.HealthCheckResponse_NOT_SERVING
	})
	_ = p.Process.Kill()
	_ = p.Wait()
}

func TestASocketOfSystemdIsServed(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	conn := dial(t, "tcp:"+lis.Addr().String())
	conn.Connect() // before the program runs
	socket, err := lis.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	for range 2 {
		cmd := exec.Command("sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=1 exec "$0"`, os.Args[0]) // as systemd does
		cmd.ExtraFiles = []*os.File{socket}
		p := start(t, cmd)
		if err := greet(conn, grpc.WaitForReady(true)); err != nil {
			t.Error(err)
		}
		p.end(t)
	}
}

func TestTheRateIsLimitedAndProbesAreNot(t *testing.T) {
	address := freeAddress(t)
	run(t, address, "-rate", "0.01")
	conn := dial(t, "tcp:"+address)
	if err := greet(conn); err != nil {
		t.Error(err)
	}
	if err := greet(conn); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("the second call in 100 seconds gets %v", err)
	}
	if s, err := probed(t, address); err != nil || s != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("the probe sees %v, %v", s, err)
	}
}

// An authority makes certificates.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pool *x509.CertPool
	next int64
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{key: key, pool: x509.NewCertPool()}
	a.cert = a.sign(t, &x509.Certificate{IsCA: true, BasicConstraintsValid: true})
	a.pool.AddCert(a.cert)
	return a
}

func (a *authority) sign(t *testing.T, c *x509.Certificate) *x509.Certificate {
	t.Helper()
	a.next++
	c.SerialNumber, c.NotAfter = big.NewInt(a.next), time.Now().Add(time.Hour)
	parent := a.cert
	if parent == nil {
		parent = c
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

// client returns the credentials of a client with a SPIFFE ID.
func (a *authority) client(t *testing.T, id string) nearcall.DialOption {
	t.Helper()
	uri, err := url.Parse(id)
	if err != nil {
		t.Fatal(err)
	}
	c := a.sign(t, &x509.Certificate{URIs: []*url.URL{uri}})
	return nearcall.WithTransportCredentials(nearcall.NewTLS(&tls.Config{
		RootCAs: a.pool, Certificates: []tls.Certificate{{Certificate: [][]byte{c.Raw}, PrivateKey: a.key}},
	}))
}

func write(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestRenewedCertificatesAreUsedAndClientsAreKnown(t *testing.T) {
	a := newAuthority(t)
	dir := t.TempDir()
	cert, key, ca := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "ca.pem")
	private, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, key, "PRIVATE KEY", private)
	write(t, ca, "CERTIFICATE", a.cert.Raw)
	renew := func() *big.Int {
		c := a.sign(t, &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
		write(t, cert, "CERTIFICATE", c.Raw)
		return c.SerialNumber
	}
	address := freeAddress(t)
	shop := a.client(t, "spiffe://example.org/shop")
	for i := range 2 {
		serial := renew()
		if i == 0 {
			run(t, address, "-cert", cert, "-key", key, "-ca", ca, "-client", "spiffe://example.org/shop")
		}
		var server peer.Peer
		if err := greet(dial(t, "tcp:"+address, shop), grpc.Peer(&server), grpc.WaitForReady(true)); err != nil {
			t.Fatal(err)
		}
		if got := server.AuthInfo.(credentials.TLSInfo).State.PeerCertificates[0].SerialNumber; got.Cmp(serial) != 0 {
			t.Errorf("the server's certificate is number %v, want %v", got, serial)
		}
	}
	if err := greet(dial(t, "tcp:"+address, a.client(t, "spiffe://example.org/other"))); status.Code(err) != codes.PermissionDenied {
		t.Errorf("another client gets %v", err)
	}
}
