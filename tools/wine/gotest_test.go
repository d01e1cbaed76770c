package main

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"testing"
)

func TestPackagesAreSortedByModule(t *testing.T) {
	got := fmt.Sprint(byModule("../..", []string{".", "./test", "./cmd/nearcall", "./...", "./cmd/nearcall/..."}))
	command := filepath.FromSlash("../../cmd/nearcall")
	want := fmt.Sprintf("[{../.. [. ./test]} {%s [.]} {../.. [./...]} {%[1]s [./...]}]", command)
	if got != want {
		t.Errorf("they are %s, want %s", got, want)
	}
	if got := byModule("../../quic", []string{"./..."}); len(got) != 1 || got[0].patterns[0] != "./..." {
		t.Errorf("in another module they are %v", got)
	}
}

// Skipped tests are listed with their reason, and a package that does not build is a
// failure.
func TestResultsAreCounted(t *testing.T) {
	r := &result{said: make(map[string][]string)}
	for _, e := range []event{
		{Action: "output", Package: "p", Output: "left out: Example_x: no sockets\n"},
		{Action: "run", Package: "p", Test: "TestA"},
		{Action: "output", Package: "p", Test: "TestA", Output: "=== RUN   TestA\n"},
		{Action: "pass", Package: "p", Test: "TestA"},
		{Action: "output", Package: "p", Test: "TestB/b", Output: "    b_test.go:7: the system has no sockets: none\n"},
		{Action: "output", Package: "p", Test: "TestB/b", Output: "--- SKIP: TestB/b (0.00s)\n"},
		{Action: "skip", Package: "p", Test: "TestB/b"},
		{Action: "pass", Package: "p", Test: "TestB"},
		{Action: "output", Package: "p", Test: "TestC", Output: "--- SKIP: TestC (0.00s)\n"},
		{Action: "skip", Package: "p", Test: "TestC"},
		{Action: "fail", Package: "p", Test: "TestD"},
		{Action: "fail", Package: "p"},
		{Action: "skip", Package: "without tests"},
		{Action: "fail", Package: "broken"},
	} {
		r.take(io.Discard, e)
	}
	if r.passed != 2 {
		t.Errorf("%d passed", r.passed)
	}
	if want := []string{"p.Example_x: no sockets", "p.TestB/b: the system has no sockets: none", "p.TestC: no reason was given"}; !slices.Equal(r.skipped, want) {
		t.Errorf("skipped are %q, want %q", r.skipped, want)
	}
	if want := []string{"p.TestD", "p", "broken"}; !slices.Equal(r.failed, want) {
		t.Errorf("failed are %q, want %q", r.failed, want)
	}
}
