//go:build unix

// Only where make flaky runs. Wine cannot remove a directory that a process has run in.

package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// In place of a package's test binary, this program records that it ran, and fails if it is
// told to.
const asPackage = "NEARCALL_FLAKY_NOTES"

func TestMain(m *testing.M) {
	notes := os.Getenv(asPackage)
	if notes == "" {
		os.Exit(m.Run())
	}
	flag.Parse()
	dir, _ := os.Getwd()
	f, err := os.OpenFile(notes, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		panic(err)
	}
	fmt.Fprintf(f, "%s short=%v\n", filepath.Base(dir), testing.Short())
	f.Close()
	if filepath.Base(dir) == "fails" {
		fmt.Println("--- FAIL: TestThatFails (0.00s)")
		os.Exit(1)
	}
}

func packages(t *testing.T, names ...string) (bins []*binary) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		dir := filepath.Join(t.TempDir(), name)
		if err := os.Mkdir(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		bins = append(bins, &binary{pkg: name, dir: dir, plain: self})
	}
	return bins
}

// runHalf runs bins, and returns what they recorded and what was printed.
func runHalf(t *testing.T, bins []*binary, o options, budget time.Duration) (notes, printed string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "notes")
	t.Setenv(asPackage, file)
	var out bytes.Buffer
	o.timeout, o.short = time.Minute, true
	h := &half{options: o, dir: t.TempDir(), out: &out, left: bins}
	if err := h.run(t.Context(), budget); err != nil {
		t.Fatal(err)
	}
	h.report(bins)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b), out.String()
}

func TestEachPackageHasItsRounds(t *testing.T) {
	notes, printed := runHalf(t, packages(t, "passes", "fails"), options{rounds: 3, jobs: 2}, time.Hour)
	for _, name := range []string{"passes", "fails"} {
		if n := strings.Count(notes, name+" short=true\n"); n != 3 {
			t.Errorf("%s ran %d times:\n%s", name, n, notes)
		}
	}
	if n := strings.Count(printed, "FAILED fails, alone, round "); n != 3 || !strings.Contains(printed, "TestThatFails") {
		t.Errorf("%d failures in\n%s", n, printed)
	}
	if strings.Contains(printed, "FAILED passes") {
		t.Error(printed)
	}
}

func TestWhereTheBudgetIsSpentEachPackageHasOneRound(t *testing.T) {
	notes, printed := runHalf(t, packages(t, "one", "two", "three"), options{rounds: 50, jobs: 1}, 0)
	if n := strings.Count(notes, "\n"); n != 3 {
		t.Errorf("%d rounds:\n%s", n, notes)
	}
	if !strings.Contains(printed, "       1        0 ") {
		t.Errorf("the report is\n%s", printed)
	}
}

func TestThePackageThatHadTheLeastTimeIsNext(t *testing.T) {
	bins := packages(t, "slow", "quick", "full")
	slow, quick, full := bins[0], bins[1], bins[2]
	h := &half{options: options{rounds: 10}, end: time.Now().Add(time.Hour), left: bins, had: map[*binary]turns{
		slow: {n: 1, took: time.Minute}, quick: {n: 9, took: time.Second}, full: {n: 10},
	}}
	if got := h.next(); got != quick {
		t.Errorf("%v is next", got)
	}
	if got := h.next(); got != slow { // while quick is running
		t.Errorf("%v follows", got)
	}
	if got := h.next(); got != nil {
		t.Errorf("%v has had its rounds", got)
	}
}

func TestRoundsTakeTurnsWithTheRaceDetector(t *testing.T) {
	b := &binary{plain: "plain", raced: "raced"}
	if b.path(0) != "raced" || b.path(1) != "plain" || b.path(2) != "raced" {
		t.Error(b.path(0), b.path(1), b.path(2))
	}
	if without := (&binary{plain: "plain"}); without.path(0) != "plain" {
		t.Error(without.path(0))
	}
}
