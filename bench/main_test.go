package main

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"strings"
	"testing"

	"github.com/nearcall/nearcall/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func TestTournamentPrintsARowForEachRival(t *testing.T) {
	var out, progress bytes.Buffer
	if err := run([]string{"-rows", "unary-32B$|bidi", "-rivals", "nearcall|direct|grpchan", "-pairs", "2", "-time", "1ms"}, &out, &progress); err != nil {
		t.Fatal(err)
	}
	head, table, _ := strings.Cut(out.String(), "\n\n")
	if !strings.Contains(head, "GOMAXPROCS") || !strings.Contains(head, "medians of 2 pairs of 1ms") {
		t.Errorf("the header is %q", head)
	}
	lines := strings.Split(strings.TrimSpace(table), "\n")
	var got []string
	for _, line := range lines[2:] {
		cells := strings.FieldsFunc(line, func(r rune) bool { return r == '|' || r == ' ' })
		if len(cells) != 6 {
			t.Fatalf("%d cells in %q", len(cells), line)
		}
		if cells[1] == Baseline && cells[5] != "1.00" {
			t.Errorf("the baseline's ratio to itself is %s", cells[5])
		}
		got = append(got, cells[0]+" "+cells[1])
	}
	want := "unary-32B nearcall, unary-32B nearcall-inline, unary-32B grpchan, unary-32B direct, unary-32B direct-clone, " +
		"bidi-echo-32B nearcall, bidi-echo-32B grpchan"
	if s := strings.Join(got, ", "); s != want {
		t.Errorf("rows are\n%s\nwant\n%s", s, want)
	}
	if !strings.Contains(progress.String(), "bidi-echo-32B: nearcall\n") {
		t.Errorf("progress is %q", progress.String())
	}
}

func TestTheBaselineIsMeasuredAlone(t *testing.T) {
	tournament, err := parse([]string{"-rows", "unary-32B$", "-rivals", Baseline, "-pairs", "3", "-time", "1ms"}, io.Discard)
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
		{"-rows", "quaternary"}, {"-rivals", "nobody"}, {"-rows", "("}, {"-pairs", "0"}, {"-time", "0s"}, {"-tmie", "1s"}, {"unary"},
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
