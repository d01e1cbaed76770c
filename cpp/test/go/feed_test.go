package cpptest

import (
	"bufio"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestFeed runs the example: a server in Go and a client in C++.
func TestFeed(t *testing.T) {
	client := program(t, "../examples/feed")
	server := filepath.Join(t.TempDir(), "feed")
	if out, err := exec.Command("go", "build", "-o", server, "github.com/nearcall/nearcall/examples/feed").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	at := target(t, "unix")
	cmd := exec.Command(server, at)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}()
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatalf("the server printed %q: %v", line, err)
	}
	out, err := exec.Command(client, at, "ACME", "2000", "0").CombinedOutput()
	if text := string(out); err != nil || !strings.Contains(text, "2000 ticks, age when they arrive: p50 ") || !strings.Contains(text, "over shm") {
		t.Errorf("%v: %s", err, text)
	}
	out, err = exec.Command(client, at, "", "1").CombinedOutput()
	if text := string(out); err == nil || !strings.Contains(text, "InvalidArgument: a symbol is needed") {
		t.Errorf("without a symbol: %v: %s", err, text)
	}
}
