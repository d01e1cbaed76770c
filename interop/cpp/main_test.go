// Package cpptest runs C++ and Go programs against each other. NEARCALL_CPP is the directory in which
// CMake has built cpp/test; without it the tests are skipped.
package cpptest

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/interop/cpp/echopb"
)

// tls is TCP with TLS.
var transports = []string{"shm", "unix", "tcp", "tls"}

// program returns the path of a program of cpp/test.
func program(t *testing.T, name string) string {
	dir := os.Getenv("NEARCALL_CPP")
	if dir == "" {
		t.Skip("NEARCALL_CPP is not set: make cpp builds the programs and runs this")
	}
	return filepath.Join(dir, "test", name)
}

// optionalProgram returns the path of a program that is only built with what it needs, and skips the test without it.
func optionalProgram(t *testing.T, name, needs string) string {
	path := program(t, name)
	if _, err := os.Stat(path); os.IsNotExist(err) {
		t.Skipf("%s was not built: it needs %s", name, needs)
	}
	return path
}

// target returns a target to listen on.
func target(t *testing.T, transport string) string {
	if transport == "tcp" || transport == "tls" {
		return transport + ":127.0.0.1:0"
	}
	dir, err := os.MkdirTemp("", "cpp") // t.TempDir's are too long for a unix socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return transport + ":" + dir + "/s"
}

// serveCPP starts a server in C++ that listens on a target, and returns the target that clients use.
func serveCPP(t *testing.T, at string) (*exec.Cmd, string) {
	cmd := exec.Command(program(t, "echo_server"), at)
	cmd.Stderr = os.Stderr
	cmd.Env = append(os.Environ(), "NEARCALL_TLS="+certificates.dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	var port int
	line, err := lines.ReadString('\n')
	if err == nil {
		_, err = fmt.Sscanf(line, "ready %d", &port)
	}
	if err != nil {
		t.Errorf("the server did not begin: %q, %v", line, err)
	}
	if transport, _, _ := strings.Cut(at, ":"); transport == "tcp" || transport == "tls" {
		at = fmt.Sprintf("%s:127.0.0.1:%d", transport, port)
	}
	return cmd, at
}

// stopCPP asks a server in C++ to stop gracefully, and waits until it has.
func stopCPP(t *testing.T, cmd *exec.Cmd) {
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the server: %v", err)
	}
}

// startCPP starts a server in C++ for the time of a test and returns the target that clients use.
func startCPP(t *testing.T, transport string) string {
	cmd, at := serveCPP(t, target(t, transport))
	idle := descriptors(cmd.Process.Pid)
	t.Cleanup(func() {
		// All clients have left, so it has as many descriptors as before.
		for deadline := time.Now().Add(10 * time.Second); ; {
			n := descriptors(cmd.Process.Pid)
			if n <= idle {
				break
			}
			if time.Now().After(deadline) {
				t.Errorf("the server has %d descriptors after its clients have left, and had %d before", n, idle)
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		stopCPP(t, cmd)
	})
	return at
}

// descriptors counts the open descriptors of a process, and none if it has ended.
func descriptors(pid int) int {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return 0
	}
	return len(entries)
}

// startGo starts a server in this process.
func startGo(t *testing.T, transport string, opts ...nearcall.ServerOption) string {
	at := target(t, transport)
	if transport == "tls" {
		opts = append(opts, nearcall.Creds(nearcall.NewTLS(&tls.Config{Certificates: []tls.Certificate{certificates.pair}})))
		at = "tcp" + strings.TrimPrefix(at, "tls")
	}
	srv := nearcall.NewServer(opts...)
	echopb.RegisterEchoServer(srv, &service{})
	h := health.NewServer()
	h.SetServingStatus("nearcall.test.Echo", healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(srv, h)
	lis, err := nearcall.Listen(at)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return transport + ":" + lis.Addr().String()
}

// TestChecks runs the checks of cpp/test/conformance against servers in C++ and Go.
func TestChecks(t *testing.T) {
	servers := map[string]func(*testing.T, string) string{
		"C++": startCPP,
		"Go":  func(t *testing.T, transport string) string { return startGo(t, transport) },
	}
	for name, start := range servers {
		for _, transport := range transports {
			t.Run(name+"/"+transport, func(t *testing.T) {
				t.Parallel()
				checks := program(t, "checks")
				cmd := exec.Command(checks, start(t, transport))
				cmd.Env = append(os.Environ(), "NEARCALL_TLS="+certificates.dir)
				out, err := cmd.CombinedOutput()
				if text := strings.TrimSpace(string(out)); err != nil {
					t.Errorf("%v:\n%s", err, text)
				} else {
					t.Log(text)
				}
			})
		}
	}
}

// later returns a target that a server can listen on later, and again.
func later(t *testing.T, transport string) string {
	at := target(t, transport)
	if transport != "tcp" && transport != "tls" {
		return at
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	return transport + ":" + lis.Addr().String()
}
