package shm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearcall/nearcall/internal/testing/needs"
)

// TestNobodySleepsThroughWhatTheOtherDid runs all interleavings of small scenes with the
// functions of ring.go as they are. No wake-up is lost, and all bytes arrive in order.
func TestNobodySleepsThroughWhatTheOtherDid(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("goes through every interleaving, and finds the same each time")
	}
	all := 0.0
	for _, sc := range scenes {
		r := explore(sc)
		if r.fault != "" {
			t.Error(r.fault)
		}
		t.Logf("%v: %.4g interleavings of %d states", sc, r.interleavings, r.states)
		all += r.interleavings
	}
	t.Logf("%.4g interleavings", all)
}

// ringFaults are mistakes in ring.go: a text that occurs in it once, and its replacement.
// Each must show in some interleaving.
var ringFaults = []struct{ name, old, new string }{
	{
		"a sender looks whether the receiver sleeps, and publishes then",
		"s.tail.Store(s.sent)\n\treturn mustRing(s.asleep, &s.rung)",
		"bell := mustRing(s.asleep, &s.rung)\n\ts.tail.Store(s.sent)\n\treturn bell",
	},
	{
		"a receiver dozes off without a second look",
		"n, err := r.ready()\n\tif n > 0 || err != nil {",
		"n, err := 0, error(nil)\n\tif n > 0 || err != nil {",
	},
	{
		"a receiver looks for the second time, and publishes then that it sleeps",
		"r.sleeps++\n\tr.asleep.Store(r.sleeps)\n\tn, err := r.ready()",
		"n, err := r.ready()\n\tr.sleeps++\n\tr.asleep.Store(r.sleeps)",
	},
	{
		"a sender waits for room without a second look",
		"room, err := s.room(1)\n\tif err != nil || room > 0 {",
		"room, err := 0, error(nil)\n\tif err != nil || room > 0 {",
	},
	{
		"a sender looks for room for the second time, and publishes then that it waits",
		"s.waits++\n\ts.wants.Store(s.waits)\n\troom, err := s.room(1)",
		"room, err := s.room(1)\n\ts.waits++\n\ts.wants.Store(s.waits)",
	},
	{
		"a receiver looks whether the sender waits, and publishes then what it received",
		"r.head.Store(r.received)\n",
		"defer r.head.Store(r.received)\n",
	},
	{
		"a receiver publishes what it has received before it has copied that",
		"n = copy(b, r.ring[at:])\n",
		"r.head.Store(r.received + uint64(len(b)))\n\tn = copy(b, r.ring[at:])\n",
	},
	{
		"a receiver rings for room before half of the ring is empty, and not afterwards",
		"if int(r.sent-r.received) <= len(r.ring)/2 {",
		"if int(r.sent-r.received) > len(r.ring)/2 {",
	},
	{
		"a receiver rings for room when half of the ring is empty, and not when more is",
		"if int(r.sent-r.received) <= len(r.ring)/2 {",
		"if int(r.sent-r.received) == len(r.ring)/2 {",
	},
	{
		"a bell is rung for one sleep only",
		"if v&1 == 0 || v == *rung {",
		"if v&1 == 0 || *rung != 0 {",
	},
	{
		"a bell is rung more than once for a sleep",
		"if v&1 == 0 || v == *rung {",
		"if v&1 == 0 {",
	},
	{
		"a bell that woke nobody is not among those that may have been rung",
		"*heard > w/2",
		"*heard > w/4",
	},
	{
		"all sleeps have the same number",
		"r.sleeps++\n\tr.asleep.Store(r.sleeps)\n\tn, err := r.ready()",
		"r.sleeps = 1\n\tr.asleep.Store(r.sleeps)\n\tn, err := r.ready()",
	},
	{
		"all waits for room have the same number",
		"s.waits++\n\ts.wants.Store(s.waits)\n\troom, err := s.room(1)",
		"s.waits = 1\n\ts.wants.Store(s.waits)\n\troom, err := s.room(1)",
	},
	{
		"a receiver that does not sleep after all does not say so",
		"r.stopSleeping()\n\t\treturn false, err",
		"return false, err",
	},
	{
		"a sender that does not wait after all does not say so",
		"s.stopWaiting()\n\t\treturn false, err",
		"return false, err",
	},
	{
		"a receiver that was woken goes on sleeping, as its word has it",
		"func (r *receiver) stopSleeping() {\n\tr.sleeps++\n",
		"func (r *receiver) stopSleeping() {\n",
	},
	{
		"a sender that was woken goes on waiting, as its word has it",
		"func (s *sender) stopWaiting() {\n\ts.waits++\n",
		"func (s *sender) stopWaiting() {\n",
	},
	{
		"a sender takes for empty what it has just filled",
		"s.received = head\n\treturn len(s.ring) - int(s.sent-head), nil",
		"s.received = head\n\treturn len(s.ring) - int(s.sent-head) + 1, nil",
	},
}

// TestTheExplorerFindsFaults shows that the test above can fail: it builds the explorer
// with one faulty copy of ring.go after the other.
func TestTheExplorerFindsFaults(t *testing.T) {
	var source, tags, explorer []byte
	for name, b := range map[string]*[]byte{"ring.go": &source, "norace.go": &tags, "explorer_test.go": &explorer} {
		var err error
		if *b, err = os.ReadFile(name); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range ringFaults {
		if n := strings.Count(string(source), f.old); n != 1 {
			t.Errorf("%s: %q stands in ring.go %d times, and should once", f.name, f.old, n)
		}
	}
	if testing.Short() || t.Failed() {
		return
	}
	needs.Program(t, "go")
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	const find = `package shm

func Find() (states int, fault string) {
	for _, sc := range scenes {
		r := explore(sc)
		states += r.states
		if r.fault != "" {
			return states, r.fault
		}
	}
	return states, ""
}
`
	var imports, calls strings.Builder
	for i, f := range ringFaults {
		pkg := fmt.Sprintf("f%d", i)
		write(pkg+"/ring.go", strings.Replace(string(source), f.old, f.new, 1))
		write(pkg+"/norace.go", string(tags))
		write(pkg+"/explorer.go", string(explorer))
		write(pkg+"/find.go", find)
		fmt.Fprintf(&imports, "import %s \"faults/%s\"\n", pkg, pkg)
		fmt.Fprintf(&calls, "\t{ n, fault := %s.Find(); fmt.Printf(\"%%d %%q\\n\", n, fault) }\n", pkg)
	}
	write("go.mod", "module faults\n\ngo 1.26\n")
	write("main.go", "package main\n\nimport \"fmt\"\n"+imports.String()+"\nfunc main() {\n"+calls.String()+"}\n")
	cmd := exec.Command("go", "run", ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != len(ringFaults) {
		t.Fatalf("%d lines:\n%s", len(lines), out)
	}
	for i, line := range lines {
		var states int
		var fault string
		if _, err := fmt.Sscanf(line, "%d %q", &states, &fault); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if fault == "" {
			t.Errorf("%s: %d states show nothing", ringFaults[i].name, states)
			continue
		}
		first, _, _ := strings.Cut(fault, "\n")
		t.Logf("%s: after %d states: %s", ringFaults[i].name, states, first)
	}
}
