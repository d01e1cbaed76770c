//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The program is built without the race detector, which multiplies the cost in memory and time.
func TestQuickAttacksAreBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes ten seconds")
	}
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("the program cannot be built: ", err)
	}
	program := filepath.Join(t.TempDir(), "attack")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-race=false", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const quick = "noise|control|claims|open-reset"
	out, err := exec.CommandContext(t.Context(), program, "-short", "-v", "-only", "^("+quick+")$").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
	if got, want := strings.Count(string(out), "attacker: "), len(strings.Split(quick, "|")); got != want {
		t.Errorf("%d attacks were made, %d were meant:\n%s", got, want, out)
	}
}

func TestAttacksAreComplete(t *testing.T) {
	p := program()
	seen := make(map[string]bool)
	for _, a := range p.Attacks {
		if seen[a.Name] {
			t.Errorf("%s is there twice", a.Name)
		}
		seen[a.Name] = true
		if a.Full == 0 || a.Short == 0 || a.Run == nil || a.What == "" || a.Before == "" || a.Path != overQUIC {
			t.Errorf("%s lacks something", a.Name)
		}
	}
	table, err := os.ReadFile("../../../docs/results/" + p.Table + ".csv")
	if err != nil {
		t.Fatal(err)
	}
	if rows := strings.Count(string(table), "\n") - 1; rows != len(p.Attacks) {
		t.Errorf("the table has %d attacks, want %d", rows, len(p.Attacks))
	}
}
