package test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/grpclog"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/peer"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/leak"
)

// A logRecorder is grpclog's default, which prints errors. While a test records, it keeps the lines
// of nearcall.
type logRecorder struct {
	grpclog.LoggerV2

	mu        sync.Mutex
	recording bool
	lines     []string // each after its level
}

var logs = &logRecorder{LoggerV2: grpclog.NewLoggerV2(io.Discard, io.Discard, os.Stderr)}

func (l *logRecorder) record(level string, args []any) {
	line := fmt.Sprintln(args...)
	if !strings.HasPrefix(line, "[nearcall]") {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.recording {
		l.lines = append(l.lines, level+strings.TrimSuffix(line, "\n"))
	}
}

// recordLogs records until the end of the test. Ports of earlier tests may come again.
func recordLogs(t *testing.T) {
	set := func(recording bool) {
		logs.mu.Lock()
		defer logs.mu.Unlock()
		logs.recording, logs.lines = recording, nil
	}
	set(true)
	t.Cleanup(func() { set(false) })
}

func (l *logRecorder) InfoDepth(_ int, args ...any)    { l.record("INFO ", args) }
func (l *logRecorder) WarningDepth(_ int, args ...any) { l.record("WARNING ", args) }
func (l *logRecorder) ErrorDepth(_ int, args ...any)   { l.Error(args...) }
func (l *logRecorder) FatalDepth(_ int, args ...any)   { l.Fatal(args...) }

// V makes grpc-go and nearcall log all that they can.
func (l *logRecorder) V(int) bool { return true }

// with returns the lines that contain all of parts.
func (l *logRecorder) with(parts ...string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) }) {
			found = append(found, line)
		}
	}
	return found
}

// wantLogged waits for a line that contains all of parts, and checks that there is one, in one
// line of text.
func wantLogged(t *testing.T, parts ...string) {
	t.Helper()
	leak.Eventually(t, fmt.Sprintf("the log has %q", parts), func() bool { return len(logs.with(parts...)) > 0 })
	if lines := logs.with(parts...); len(lines) > 1 || strings.Contains(lines[0], "\n") {
		t.Errorf("the log has %q, want one line", lines)
	}
}

// send connects to address, sends what, and returns the connection's own address after the server
// has closed it.
func send(t *testing.T, network, address, what string) (from string) {
	t.Helper()
	conn, err := net.Dial(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, what); err != nil {
		t.Fatal(err)
	}
	_ = conn.(interface{ CloseWrite() error }).CloseWrite()
	_, _ = io.Copy(io.Discard, conn)
	return conn.LocalAddr().String()
}

func TestFailedTLSHandshakesAreLogged(t *testing.T) {
	recordLogs(t)
	certs := newCertificates(t)
	lis := listen(t, "tcp:127.0.0.1:0")
	start(t, serve(t, echo{}, nearcall.Creds(credentials.NewTLS(certs.server(nil)))), lis)
	address := lis.Addr().String()
	for what, remedy := range map[string]string{
		"nearcall/1\n":       "it is a nearcall client without TLS",
		"GET / HTTP/1.1\r\n": "it does not use TLS",
	} {
		wantLogged(t, "INFO [nearcall] the security handshake with "+send(t, "tcp", address, what), "failed", remedy)
	}
	for _, c := range []struct {
		name, remedy string
		config       *tls.Config
	}{
		{"an ALPN mismatch", "must agree on h2 or http/1.1", &tls.Config{RootCAs: certs.roots, NextProtos: []string{"a\nb"}}},
		{"no ALPN", "must agree on h2 or http/1.1", &tls.Config{RootCAs: certs.roots}},
		{"a certificate that is refused", "the client refuses the server's certificate", &tls.Config{NextProtos: []string{"h2"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			raw, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			defer raw.Close()
			c.config.ServerName = "localhost"
			if conn := tls.Client(raw, c.config); conn.Handshake() == nil {
				_, _ = conn.Read(make([]byte, 1))
			}
			wantLogged(t, "INFO [nearcall] the security handshake with "+raw.LocalAddr().String(), "failed", c.remedy)
		})
	}
}

func TestRefusedConnectionsAreLogged(t *testing.T) {
	recordLogs(t)
	const http2 = preface + noSettings
	lis := listen(t, "tcp:127.0.0.1:0")
	start(t, serve(t, echo{}, nearcall.OtherClients(0)), lis)
	for what, why := range map[string]string{
		"\x00\n garbage":     `it does not speak a protocol of this server; it began with "\x00\n garbage"`,
		"\x16\x03\x01":       "it uses TLS, for which the server needs Creds",
		http2:                "needs OtherClients with GRPCClients",
		"GET / HTTP/1.1\r\n": "needs OtherClients with WebClients",
	} {
		wantLogged(t, "INFO [nearcall] refused "+send(t, "tcp", lis.Addr().String(), what), why)
	}
	if runtime.GOOS != "linux" {
		return
	}
	near := listen(t, targetFor(t, "shm"))
	start(t, serve(t, echo{}), near)
	path := near.Addr().String()
	who := fmt.Sprintf("INFO [nearcall] refused process %d of user %d at %s", os.Getpid(), os.Getuid(), path)
	for what, why := range map[string]string{
		"nearcall/1\n":       "takes shared memory only",
		http2:                "it is an ordinary gRPC client, and the listener takes nearcall's clients over shared memory only",
		"GET / HTTP/1.1\r\n": "it is a client of HTTP/1, and the listener takes nearcall's clients over shared memory only",
	} {
		send(t, "unix", path, what)
		wantLogged(t, who, why)
	}
}

func TestClientsThatSendTooLittleAreLogged(t *testing.T) {
	recordLogs(t)
	lis := listen(t, "tcp:127.0.0.1:0")
	start(t, serve(t, echo{}, nearcall.ConnectionTimeout(50*time.Millisecond)), lis)
	conn, err := net.Dial("tcp", lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "near")
	wantLogged(t, "INFO [nearcall] finding out the protocol with "+conn.LocalAddr().String()+" failed", "timeout")
}

func TestTheEndsOfConnectionsAreLoggedIfAskedFor(t *testing.T) {
	recordLogs(t)
	lis := listen(t, "tcp:127.0.0.1:0")
	start(t, serve(t, echo{}), lis)
	conn, err := nearcall.NewClient(lis.Target())
	if err != nil {
		t.Fatal(err)
	}
	var server peer.Peer
	wantCode(t, <-invoke(t.Context(), testpb.NewTestServiceClient(conn), grpc.Peer(&server)), codes.OK)
	_ = conn.Close()
	wantLogged(t, "INFO [nearcall] closing the connection with "+lis.Target())
	wantLogged(t, "INFO [nearcall] closing the connection with tcp:"+server.LocalAddr.String())
}

// Load balancers and probes connect and close, and a client that works is no event.
func TestConnectionsThatCloseOrWorkAreNotLogged(t *testing.T) {
	recordLogs(t)
	lis := listen(t, "tcp:127.0.0.1:0")
	start(t, serve(t, echo{}), lis)
	var probes []string
	for range 3 {
		probes = append(probes, send(t, "tcp", lis.Addr().String(), ""))
	}
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecureCreds()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.Connect()
	wantCode(t, <-invoke(t.Context(), dial(t, lis.Target())), codes.OK)
	wantLogged(t, "refused "+send(t, "tcp", lis.Addr().String(), "\x00 the last"))
	for _, from := range probes {
		if lines := logs.with(from); lines != nil {
			t.Errorf("a connection that was closed is logged: %q", lines)
		}
	}
}

func TestFailedHandshakesOfNearcallAreLogged(t *testing.T) {
	recordLogs(t)
	lis := listen(t, "tcp:127.0.0.1:0")
	start(t, serve(t, echo{}), lis)
	for _, what := range []string{"nearcall/1\n", "nearcall/1\n\x00\x00 not HELLO"} {
		wantLogged(t, "INFO [nearcall] the handshake with tcp:"+send(t, "tcp", lis.Addr().String(), what)+" at "+lis.Addr().String()+" failed")
	}
}

func TestDeclinedUpgradesAreLoggedByBothSides(t *testing.T) {
	recordLogs(t)
	if runtime.GOOS != "linux" {
		t.Skip("there is no shared memory")
	}
	lis := listen(t, targetFor(t, "unix"))
	start(t, serve(t, echo{}, nearcall.DisableSharedMemory()), lis)
	wantCode(t, <-invoke(t.Context(), dial(t, lis.Target())), codes.OK)
	path := lis.Addr().String()
	wantLogged(t, fmt.Sprintf("INFO [nearcall] no shared memory with process %d", os.Getpid()), "at "+path, "DisableSharedMemory or WithDisableSharedMemory")
	wantLogged(t, "INFO [nearcall] no shared memory with "+path, "the server declines: DisableSharedMemory or WithDisableSharedMemory")

	quiet := listen(t, targetFor(t, "unix"))
	start(t, serve(t, echo{}), quiet)
	wantCode(t, <-invoke(t.Context(), dial(t, quiet.Target(), nearcall.WithDisableSharedMemory())), codes.OK)
	if lines := logs.with("no shared memory", quiet.Addr().String()); lines != nil {
		t.Errorf("a client that offers no upgrade is logged: %q", lines)
	}
}

func TestFailedDialsAndReconnectsAreLogged(t *testing.T) {
	recordLogs(t)
	lis := listen(t, "tcp:127.0.0.1:0")
	target := lis.Target()
	srv := serve(t, echo{})
	start(t, srv, lis)
	conn, err := nearcall.NewClient(target, impatient())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := testpb.NewTestServiceClient(conn)
	wantCode(t, <-invoke(t.Context(), client), codes.OK)
	wantLogged(t, "INFO [nearcall] connection to "+target+": READY")
	srv.Stop()
	leak.Eventually(t, "the client notices", func() bool { return conn.GetState() == connectivity.Idle })
	conn.Connect()
	wantLogged(t, "INFO [nearcall] connection to "+target+": IDLE: the last connection ended")
	leak.Eventually(t, "a failed dial is a warning", func() bool {
		return logs.with("WARNING [nearcall] failed to connect to "+target, "refused") != nil
	})
	start(t, serve(t, echo{}), listen(t, target))
	wantCode(t, <-invoke(t.Context(), client, grpc.WaitForReady(true)), codes.OK)
	if n := len(logs.with("connection to " + target + ": READY")); n != 2 {
		t.Errorf("READY is logged %d times, want twice", n)
	}
}

func TestMovingATargetToGRPCIsLogged(t *testing.T) {
	recordLogs(t)
	for target, moved := range map[string]bool{
		"dns:///moved.test:1": true, "moved.test:2": true, "passthrough:///moved.test:3": true,
		"grpc:moved.test:4": false, "tcp:moved.test:5": false,
	} {
		for _, opts := range [][]nearcall.DialOption{
			{nearcall.WithTransportCredentials(insecure.NewCredentials())},
			{nearcall.WithTransportCredentials(insecure.NewCredentials()), nearcall.WithGRPCDialOptions(grpc.WithReadBufferSize(1 << 10))},
		} {
			conn, err := nearcall.NewClient(target, opts...)
			if err != nil {
				t.Fatal(err)
			}
			_ = conn.Close()
			found := logs.with("INFO ", fmt.Sprintf("calls to %q go to grpc-go, over HTTP/2, because of WithGRPCDialOptions", target))
			if want := moved && len(opts) > 1; len(found) > 1 || len(found) == 1 != want {
				t.Errorf("%s with %d options: the log has %q", target, len(opts), found)
			}
		}
	}
}
