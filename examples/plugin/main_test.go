package main

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/nearcall/nearcall/internal/testing/leak"
)

func TestMain(m *testing.M) {
	if os.Getenv(handshake.MagicCookieKey) != "" {
		servePlugin()
		return
	}
	leak.Main(m)
}

func TestBothHostsAreGreeted(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there plugins listen at TCP ports")
	}
	var said strings.Builder
	if err := run(t.Context(), &said); err != nil {
		t.Fatalf("%v, after it has said:\n%s", err, &said)
	}
	near := "unix"
	if runtime.GOOS == "linux" {
		near = "shm"
	}
	want := "Hello, ordinary host, over unix\nHello, host on nearcall, over " + near + "\n"
	if said.String() != want {
		t.Errorf("it says %q, want %q", &said, want)
	}
}
