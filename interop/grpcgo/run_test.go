package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearcall/nearcall/interop/grpcgo/shim/near"
)

// helping is the environment variable that activates the helpers below. They are the tests
// that a runner runs.
const helping = "NEARCALL_GRPCGO_HELPER"

func helper(t *testing.T) string {
	dir := os.Getenv(helping)
	if dir == "" {
		t.Skip("a runner runs it")
	}
	return dir
}

func TestHelperPasses(t *testing.T) { helper(t) }

// It fails the first time and passes after that.
func TestHelperFailsOnce(t *testing.T) {
	mark := filepath.Join(helper(t), "failed")
	if _, err := os.Stat(mark); err != nil {
		if err := os.WriteFile(mark, nil, 0o666); err != nil {
			t.Fatal(err)
		}
		t.Fatal("not yet")
	}
}

func TestHelperFails(t *testing.T) { helper(t); t.Error("it says why") }

func TestHelperPanics(t *testing.T) { helper(t); panic("broken") }

func TestHelperHangs(t *testing.T) { helper(t); select {} }

func TestHelperWantsMore(t *testing.T) { helper(t); near.Unsupported("wings") }

func TestFailuresAreTriedAgainUnlessTheTableNamesThem(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	t.Setenv(helping, dir)
	r := &runner{dir: dir, binaries: map[string]string{"p": self}, logs: dir, limit: 2 * time.Second, tries: 3}
	p := &pkg{name: "p"}
	known := &line{}
	var jobs []job
	for _, name := range []string{"Passes", "FailsOnce", "Fails", "Panics", "Hangs", "WantsMore", "None"} {
		jobs = append(jobs, job{test{p, "TestHelper" + name, "^TestHelper" + name + "$", false}, near.TCP, nil})
	}
	jobs = append(jobs, job{test{p, "TestHelperFails", "^TestHelperFails$", false}, near.Unix, known})
	told := 0
	got := make(map[string]result)
	for _, res := range r.run(t.Context(), jobs, 2, func(result) { told++ }) {
		got[strings.TrimPrefix(res.name, "TestHelper")+" "+string(res.kind)] = res
	}
	for name, want := range map[string]struct {
		state state
		tries int
		note  string
	}{
		"Passes tcp":    {pass, 1, ""},
		"FailsOnce tcp": {pass, 2, ""},
		"Fails tcp":     {fail, 3, "it says why"},
		"Fails unix":    {fail, 1, "it says why"},
		"Panics tcp":    {panicked, 1, "panic: broken"},
		"Hangs tcp":     {hang, 1, ""},
		"WantsMore tcp": {unsupported, 1, "nearcall does not have: wings"},
		"None tcp":      {fail, 3, "the test binary does not have it"},
	} {
		res := got[name]
		if res.state != want.state || res.tries != want.tries || !strings.Contains(res.note, want.note) {
			t.Errorf("%s: %s after %d tries (%s), want %s after %d (%s)", name, res.state, res.tries, res.note, want.state, want.tries, want.note)
		}
		if _, err := os.Stat(res.log); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if told != len(jobs) {
		t.Errorf("told of %d results, want one of each of %d jobs", told, len(jobs))
	}
}

func TestADataRaceIsNotForgiven(t *testing.T) {
	err := exec.Command("go", "nothing").Run() // exits with 2
	s, _ := judge([]byte("WARNING: DATA RACE\n    --- FAIL: Test/X\n"), err)
	if s != race || s.mayPass() {
		t.Errorf("it is a %s, which may pass: %v", s, s.mayPass())
	}
}

func TestTheReportFailsForWhatTheTableDoesNotSay(t *testing.T) {
	p := &pkg{name: "p"}
	table, err := parseTable("p\\.Known\ttcp\topen\tlater\np\\.AtTimes\ttcp\twording?\tsometimes\n")
	if err != nil {
		t.Fatal(err)
	}
	res := func(name string, s state) result {
		return result{job: job{test{p, "Test" + name, "", false}, near.TCP, find(table, "p."+name, near.TCP)}, state: s, tries: 1}
	}
	for _, c := range []struct {
		name string
		rep  report
		want string
	}{
		{"as it says", report{results: []result{res("New", pass), res("Known", fail), res("AtTimes", fail)}}, ""},
		{"passing at times", report{results: []result{res("AtTimes", pass)}}, ""},
		{"a new failure", report{results: []result{res("New", leak)}}, "1 failures"},
		{"a line that is needed no longer", report{results: []result{res("Known", pass)}}, "1 tests that it names and that pass"},
		{"a line without a test", report{stale: table[:1]}, "1 of its lines without a test"},
	} {
		var out bytes.Buffer
		err := c.rep.print(&out)
		if got := err == nil; got != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q\n%s", c.name, err, c.want, &out)
		}
	}
}
