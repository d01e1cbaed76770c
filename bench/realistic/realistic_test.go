package main

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearcall/nearcall/internal/testing/leak"
)

func TestMain(m *testing.M) {
	if i := slices.Index(os.Args, "-serve"); i >= 0 && i+1 < len(os.Args) { // the second process
		if err := servePeer(os.Args[i+1]); err != nil {
			panic(err)
		}
		return
	}
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE")) // or each second process would take a second to exit
	leak.Main(m)
}

func TestEachWayHasALineForEachKind(t *testing.T) {
	var out strings.Builder
	if err := (plan{pairs: 2, lasts: time.Millisecond}).run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if want := 4 + len(ways())*len(kinds); len(lines) != want {
		t.Errorf("%d lines, want %d:\n%s", len(lines), want, out.String())
	}
	for _, line := range lines[2:] {
		if strings.Count(line, "|") != strings.Count(lines[2], "|") {
			t.Errorf("%q has not as many columns as %q", line, lines[2])
		}
	}
}

// TestACallWithoutATokenIsRefused checks that the interceptors check the token, as their cost
// would not be realistic otherwise.
func TestACallWithoutATokenIsRefused(t *testing.T) {
	srv := newNearcallServer()
	defer srv.Stop()
	conn := srv.Client()
	defer conn.Close()
	if err := placeOrder(t.Context(), newCaller(conn)); err == nil || !strings.Contains(err.Error(), "Unauthenticated") {
		t.Errorf("a call without a token: %v", err)
	}
}
