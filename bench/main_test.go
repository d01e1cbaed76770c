package main

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/nearcall/nearcall/internal/testing/leak"
)

func TestMain(m *testing.M) {
	if beThePeer(inTests) {
		return
	}
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE")) // or each second process would take a second to exit
	if os.Getenv("NEARCALL_RIVALS") == "only" {
		// shmipc-go can wait for ever on a busy machine, and go test ends no benchmarks.
		time.AfterFunc(3*time.Minute, func() {
			debug.SetTraceback("all")
			panic("a rival stands still")
		})
	}
	leak.Main(m)
}

// orShared adds the table of shared memory to a list if the system has one.
func orShared(tables string) string {
	if hasSharedMemory {
		tables += ", " + sharedMemory
	}
	return tables
}

// measures runs the command. In runs as short as those of tests nearcall need not be first.
func measures(t *testing.T, args []string, stdout, stderr io.Writer) {
	t.Helper()
	var behind behindError
	if err := run(args, stdout, stderr); err != nil && !errors.As(err, &behind) {
		t.Fatal(err)
	}
}

func TestTournamentPrintsAndWritesFiles(t *testing.T) {
	dir := t.TempDir()
	file := func(end string) string { return filepath.Join(dir, "in-process"+end) }
	if err := os.WriteFile(file(".csv"), bytes.Repeat([]byte("longer than what is to come\n"), 1000), 0o666); err != nil {
		t.Fatal(err)
	}
	var out, progress bytes.Buffer
	measures(t, []string{"-tables", "in-process", "-rows", "unary-32B$|bidi", "-rivals", "^nearcall|direct|grpchan", "-pairs", "2", "-time", "1ms",
		"-results", dir}, &out, &progress)
	if head, _, _ := strings.Cut(out.String(), "\n\n"); !strings.Contains(head, "GOMAXPROCS") || !strings.Contains(head, "medians of 2 pairs of 1ms") {
		t.Errorf("the header is %q", head)
	}
	if !strings.Contains(progress.String(), "in-process, bidi-echo-32B: nearcall\n") {
		t.Errorf("progress is %q", progress.String())
	}
	read := func(name string) string {
		b, err := os.ReadFile(file(name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	var got []string
	for _, line := range strings.Split(strings.TrimSpace(read(".csv")), "\n")[1:] {
		cells := strings.Split(line, ",")
		got = append(got, cells[0]+" "+cells[6])
	}
	want := "unary-32B nearcall, unary-32B nearcall-inline, unary-32B nearcall-shared, unary-32B grpchan, unary-32B direct, unary-32B direct-clone, " +
		"bidi-echo-32B nearcall, bidi-echo-32B nearcall-shared, bidi-echo-32B grpchan"
	if s := strings.Join(got, ", "); s != want {
		t.Errorf("results are\n%s\nwant\n%s", s, want)
	}
	for _, name := range []string{".svg", "-short.svg"} {
		if s := read(name); !strings.HasPrefix(s, "<svg ") || !strings.Contains(s, "bidi echo") {
			t.Errorf("the %s picture is %s", name, s)
		}
	}
}

// TestFilesAreOpenedFirst checks that files which cannot be written are an error before
// anything is measured.
func TestFilesAreOpenedFirst(t *testing.T) {
	var progress bytes.Buffer
	err := run([]string{"-results", filepath.Join(t.TempDir(), "none")}, io.Discard, &progress)
	if !errors.Is(err, fs.ErrNotExist) || progress.Len() > 0 {
		t.Errorf("%v, after %q", err, progress.String())
	}
}

func TestResultsOfEachTable(t *testing.T) {
	dir := t.TempDir()
	tables := []string{"unix", "tcp"}
	if hasSharedMemory {
		tables = append(tables, sharedMemory)
	}
	var out bytes.Buffer
	measures(t, []string{"-tables", strings.Join(tables, ","), "-rows", "^empty$|bidi", "-rivals", "nearcall|raw", "-pairs", "1", "-time", "1ms", "-results", dir}, &out, io.Discard)
	if printed := out.String(); !strings.Contains(printed, "¹ raw has no streams.") || hasSharedMemory && !strings.Contains(printed, "a cache line that both watch goes there and back in ") {
		t.Errorf("printed is\n%s", printed)
	}
	for _, name := range tables {
		for _, ending := range []string{".csv", ".svg", "-short.svg"} {
			if b, err := os.ReadFile(filepath.Join(dir, name+ending)); err != nil || !bytes.Contains(b, []byte("bidi")) {
				t.Errorf("%s%s: %v, %s", name, ending, err, b)
			}
		}
	}
}

// TestTablesAreSelected checks that the flags for single files select the first
// table by default.
func TestOneTableIsMeantWhereOneIsDrawn(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"", orShared("in-process, loop, unix, tcp, ws, quic")},
		{"-tables tcp,unix", "tcp, unix"},
		{"-rows idle", orShared("unix, tcp, ws, quic")},
		{"-rivals grpchan", "in-process, loop"},
		{"-rivals coroutines", "loop"},
	} {
		events, err := parse(strings.Fields(c.args), io.Discard)
		got := strings.Join(names(events, func(e *event) string { return e.table.Name }), ", ")
		if err != nil || got != c.want {
			t.Errorf("%s: %s, %v, want %s", c.args, got, err, c.want)
		}
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
		events, err := parse(c.args, io.Discard)
		if err != nil || len(events) != len(Tables(0)) {
			t.Fatalf("%q: %d tables, %v", c.args, len(events), err)
		}
		for _, got := range events {
			if got.Pairs != c.pairs || got.Time != c.time {
				t.Errorf("%q: %+v", c.args, got.Tournament)
			}
		}
	}
}

func TestTheBaselineIsMeasuredAlone(t *testing.T) {
	for _, table := range Tables(0) {
		events, err := parse([]string{"-tables", table.Name, "-rows", "unary-32B$", "-rivals", table.Baseline, "-pairs", "3", "-time", "1ms"}, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		results, err := events[0].Run()
		if err != nil || len(results) != 1 || results[0].Rival.Name != table.Baseline || results[0].Ratio != 1 || results[0].Ns <= 0 {
			t.Errorf("%s: results are %+v, %v", table.Name, results, err)
		}
	}
}

// TestWithoutSharedMemoryItsTableIsAnError checks the error of systems that have no shared
// memory.
func TestWithoutSharedMemoryItsTableIsAnError(t *testing.T) {
	_, err := chooseTables(sharedMemory, []Table{inProcess})
	if err == nil || !strings.Contains(err.Error(), "has no shared memory that nearcall can use, only Linux has") {
		t.Errorf("got %v", err)
	}
}

func TestFlagsThatMakeNoSense(t *testing.T) {
	for _, args := range [][]string{
		{"-rows", "quaternary"}, {"-rivals", "nobody"}, {"-rows", "("}, {"-pairs", "0"}, {"-parked", "-1"}, {"-time", "0s"}, {"-tmie", "1s"}, {"unary"},
		{"-tables", "pigeon"}, {"-tables", "unix,unix"}, {"-tables", "unix", "-rivals", "grpchan"},
	} {
		err := run(args, io.Discard, io.Discard)
		var bad usageError
		if !errors.As(err, &bad) {
			t.Errorf("%q: %v, want a usage error", args, err)
		}
	}
	var help bytes.Buffer
	if err := run([]string{"-h"}, io.Discard, &help); !errors.Is(err, flag.ErrHelp) || !strings.Contains(help.String(), "unary-32B-cancellable") || !strings.Contains(help.String(), "unary-32B-1000-callers") {
		t.Errorf("-h: %v, %s", err, help.String())
	}
}
