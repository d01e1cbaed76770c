// Package needs skips tests of features that the system lacks. It finds out by trying, so
// that a test runs wherever its feature exists.
package needs

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// UnixSockets skips a test if the system has no unix sockets. Call it before the test
// creates anything that a cleanup removes.
func UnixSockets(t testing.TB) {
	t.Helper()
	if err := unixSockets(); err != nil {
		t.Skipf("the system has no unix sockets: %v", err)
	}
}

// HasUnixSockets reports whether the system has unix sockets.
func HasUnixSockets() bool { return unixSockets() == nil }

var unixSockets = sync.OnceValue(func() error {
	dir, err := os.MkdirTemp("", "needs")
	if err != nil {
		return nil // not a reason to skip a test
	}
	lis, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err == nil {
		err = lis.Close()
	}
	return errors.Join(err, os.Remove(dir))
})

// UDP skips a test if the system has no UDP that Go can use, as Wine.
func UDP(t testing.TB) {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Skipf("the system has no UDP: %v", err)
	}
	_ = conn.Close()
}

// Time skips a test with -short. It is for tests that take seconds with the race detector, and look for
// other faults than races. make test runs the short tests with it, make check runs all without it.
func Time(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes long")
	}
}

// Rounds returns n, or a fifth of it, and at least one, with -short: how often a test repeats itself.
func Rounds(n int) int {
	if testing.Short() {
		return max(n/5, 1)
	}
	return n
}

// Program skips a test if there is no program of that name.
func Program(t testing.TB, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("the system has no program %s: %v", name, err)
	}
}
