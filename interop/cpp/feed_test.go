package cpptest

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// startFeed starts the server of the directory feed and returns its target.
func startFeed(t *testing.T) string {
	server := filepath.Join(t.TempDir(), "feed")
	if out, err := exec.Command("go", "build", "-o", server, "./feed").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	at := target(t, "unix")
	startProgram(t, server, at)
	return at
}

// startProgram starts a program that prints a line when it is ready, and returns the line. SIGTERM ends it with the test.
func startProgram(t *testing.T, name string, args ...string) string {
	cmd := exec.Command(name, args...)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("%s printed %q: %v", name, line, err)
	}
	return strings.TrimSpace(line)
}

// TestFeed runs the example: a server in Go and a client in C++.
func TestFeed(t *testing.T) {
	client := program(t, "../examples/feed")
	at := startFeed(t)
	out, err := exec.Command(client, at, "ACME", "2000", "0").CombinedOutput()
	if text := string(out); err != nil || !strings.Contains(text, "2000 ticks, age when they arrive: p50 ") || !strings.Contains(text, "over shm") {
		t.Errorf("%v: %s", err, text)
	}
	out, err = exec.Command(client, at, "", "1").CombinedOutput()
	if text := string(out); err == nil || !strings.Contains(text, "InvalidArgument: a symbol is needed") {
		t.Errorf("without a symbol: %v: %s", err, text)
	}
}

// TestFeedInOtherLoops runs the examples for asio and Qt, where these are installed.
func TestFeedInOtherLoops(t *testing.T) {
	program(t, "") // or skip
	at := startFeed(t)
	for _, loop := range []string{"asio", "qt"} {
		t.Run(loop, func(t *testing.T) {
			client := optionalProgram(t, "../examples/"+loop+"/prices", loop)
			out, err := exec.Command(client, at, "ACME").CombinedOutput()
			if text := string(out); err != nil || strings.Count(text, "ACME ") != 10 {
				t.Errorf("%v: %s", err, text)
			}
			if text := string(out); loop == "qt" && !strings.Contains(text, "a timer of Qt") {
				t.Errorf("Qt's timers did not run: %s", text)
			}
		})
	}
}
