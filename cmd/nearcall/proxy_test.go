package main

import (
	"bufio"
	"context"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nearcall/nearcall/internal/testing/needs"
)

// TestProxyReachesASocketFromTCP starts a proxy from TCP to a unix socket, and calls through it
// with nearcall's target and with that of an ordinary gRPC client.
func TestProxyReachesASocketFromTCP(t *testing.T) {
	needs.UnixSockets(t)
	target := serveNear(t, "unix:"+filepath.Join(t.TempDir(), "s"), withShop)
	ctx, stop := context.WithCancel(t.Context())
	said, says := io.Pipe()
	exited := make(chan int, 1)
	go func() {
		exited <- run(ctx, []string{"proxy", "tcp:127.0.0.1:0", target}, stdio{strings.NewReader(""), io.Discard, says})
	}()
	line, err := bufio.NewReader(said).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`^nearcall: clients on tcp:(\S+) call unix:\S+\n$`).FindStringSubmatch(line)
	if found == nil {
		t.Fatalf("it says %q", line)
	}
	for _, at := range []string{"tcp:" + found[1], "grpc:" + found[1]} {
		if got := succeeds(t, "list", at); !strings.Contains(got, "nearcall.examples.orders.Orders") {
			t.Errorf("list %s prints\n%s", at, got)
		}
	}
	stop()
	if code := <-exited; code != exitOK {
		t.Errorf("the exit code is %d", code)
	}
}

func TestProxyRefusesWhatItCannotJoin(t *testing.T) {
	for _, args := range [][]string{
		{"proxy", "inproc:a", "tcp:127.0.0.1:1"},
		{"proxy", "tcp:127.0.0.1:0", "inproc:a"},
		{"proxy", "tcp:127.0.0.1:0", "tcp:127.0.0.1:0"},
		{"proxy", "tcp:127.0.0.1:0", "unix:"},
		{"proxy", "tcp:127.0.0.1:0", "http://127.0.0.1:1"},
		{"proxy", "quic:127.0.0.1:0", "tcp:127.0.0.1:1"},
		{"proxy", "wss://127.0.0.1:0/", "tcp:127.0.0.1:1"},
		{"proxy", "nonsense", "tcp:127.0.0.1:1"},
		{"proxy", "-listen-cert", "x", "tcp:127.0.0.1:0", "tcp:127.0.0.1:1"},
		{"proxy", "tcp:127.0.0.1:0"},
	} {
		var says strings.Builder
		if code := run(t.Context(), args, stdio{strings.NewReader(""), io.Discard, &says}); code == exitOK || !strings.HasPrefix(says.String(), "nearcall") {
			t.Errorf("%v: %d, %s", args, code, says.String())
		}
	}
}

// A target that cannot be reached is an error before a client connects.
func TestProxyRefusesATargetThatItCannotReach(t *testing.T) {
	for target, says := range map[string]string{
		"tcp:127.0.0.1:1": "nearcall: Unavailable: connection error: desc = \"tcp:127.0.0.1:1: dial tcp",
		"127.0.0.1:1":     "nearcall: Unavailable: connection error: desc = \"transport: Error while",
	} {
		fails(t, 64+14, says, "proxy", "tcp:127.0.0.1:0", target)
	}
	needs.UnixSockets(t)
	path := filepath.Join(t.TempDir(), "s")
	fails(t, 64+14, "Unavailable", "proxy", "unix:"+path, "tcp:127.0.0.1:1")
	if _, err := os.Stat(path); err == nil {
		t.Error("its socket is left")
	}
}
