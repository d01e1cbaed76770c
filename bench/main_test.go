package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearcall/nearcall/internal/leak"
)

func TestMain(m *testing.M) {
	if stack, network, peer := strings.Cut(os.Getenv(peerEnv), " "); peer {
		if err := servePeer(stack, network); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	leak.Main(m)
}

func TestTournamentPrintsAndWritesFiles(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(file("csv"), bytes.Repeat([]byte("longer than what is to come\n"), 1000), 0o666); err != nil {
		t.Fatal(err)
	}
	var out, progress bytes.Buffer
	if err := run([]string{"-rows", "unary-32B$|bidi", "-rivals", "nearcall|direct|grpchan", "-pairs", "2", "-time", "1ms",
		"-md", file("md"), "-csv", file("csv"), "-svg", file("svg"), "-short", file("short")}, &out, &progress); err != nil {
		t.Fatal(err)
	}
	if head, _, _ := strings.Cut(out.String(), "\n\n"); !strings.Contains(head, "GOMAXPROCS") || !strings.Contains(head, "medians of 2 pairs of 1ms") {
		t.Errorf("the header is %q", head)
	}
	if !strings.Contains(progress.String(), "bidi-echo-32B: nearcall\n") {
		t.Errorf("progress is %q", progress.String())
	}
	read := func(name string) string {
		b, err := os.ReadFile(file(name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if read("md") != out.String() {
		t.Errorf("the file has\n%s\nand not what was printed", read("md"))
	}
	var got []string
	for _, line := range strings.Split(strings.TrimSpace(read("csv")), "\n")[1:] {
		cells := strings.Split(line, ",")
		got = append(got, cells[0]+" "+cells[6])
	}
	want := "unary-32B nearcall, unary-32B nearcall-inline, unary-32B nearcall-shared, unary-32B grpchan, unary-32B direct, unary-32B direct-clone, " +
		"bidi-echo-32B nearcall, bidi-echo-32B nearcall-shared, bidi-echo-32B grpchan"
	if s := strings.Join(got, ", "); s != want {
		t.Errorf("results are\n%s\nwant\n%s", s, want)
	}
	for _, name := range []string{"svg", "short"} {
		if s := read(name); !strings.HasPrefix(s, "<svg ") || !strings.Contains(s, "bidi echo") {
			t.Errorf("the %s picture is %s", name, s)
		}
	}
}

// TestFilesAreOpenedFirst has the machine not work for minutes in vain.
func TestFilesAreOpenedFirst(t *testing.T) {
	var progress bytes.Buffer
	err := run([]string{"-svg", filepath.Join(t.TempDir(), "none", "svg")}, io.Discard, &progress)
	if !errors.Is(err, fs.ErrNotExist) || progress.Len() > 0 {
		t.Errorf("%v, after %q", err, progress.String())
	}
}

func TestQuickLeavesWhatIsGiven(t *testing.T) {
	for _, c := range []struct {
		args  []string
		pairs int
		time  time.Duration
	}{
		{nil, defaultPairs, defaultTime},
		{[]string{"-quick"}, quickPairs, quickTime},
		{[]string{"-pairs", "9", "-quick"}, 9, quickTime},
		{[]string{"-quick", "-time", "1s"}, quickPairs, time.Second},
	} {
		got, _, err := parse(c.args, io.Discard)
		if err != nil || got.Pairs != c.pairs || got.Time != c.time {
			t.Errorf("%q: %+v, %v", c.args, got, err)
		}
	}
}

func TestTheBaselineIsMeasuredAlone(t *testing.T) {
	tournament, _, err := parse([]string{"-rows", "unary-32B$", "-rivals", Baseline, "-pairs", "3", "-time", "1ms"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	results, err := tournament.Run()
	if err != nil || len(results) != 1 || results[0].Rival.Name != Baseline || results[0].Ratio != 1 || results[0].Ns <= 0 {
		t.Errorf("results are %+v, %v", results, err)
	}
}

func TestFlagsThatMakeNoSense(t *testing.T) {
	for _, args := range [][]string{
		{"-rows", "quaternary"}, {"-rivals", "nobody"}, {"-rows", "("}, {"-pairs", "0"}, {"-parked", "-1"}, {"-time", "0s"}, {"-tmie", "1s"}, {"unary"},
	} {
		err := run(args, io.Discard, io.Discard)
		var bad usageError
		if !errors.As(err, &bad) {
			t.Errorf("%q: %v, want a usage error", args, err)
		}
	}
	var help bytes.Buffer
	if err := run([]string{"-h"}, io.Discard, &help); !errors.Is(err, flag.ErrHelp) || !strings.Contains(help.String(), "unary-32B-cancellable") {
		t.Errorf("-h: %v, %s", err, help.String())
	}
}
