package foreign

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// helping is the environment variable that activates the helpers below. They are the tests
// that a runner runs.
const helping = "NEARCALL_FOREIGN_HELPER"

func helper(t *testing.T) string {
	dir := os.Getenv(helping)
	if dir == "" {
		t.Skip("a runner runs it")
	}
	fmt.Println("MARKED")
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

func TestHelperWantsMore(t *testing.T) {
	helper(t)
	fmt.Println(Unsupported + "wings")
	os.Exit(1)
}

func TestHelperDoesNotCall(t *testing.T) {
	if os.Getenv(helping) != "" {
		t.Error("it fails, and nearcall has no part in that")
	}
}

func TestFailuresAreTriedAgainUnlessTheTableNamesThem(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	t.Setenv(helping, dir)
	if err := os.Symlink(self, filepath.Join(dir, "p.test")); err != nil {
		t.Skip("this system has no symbolic links: ", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "p"), 0o777); err != nil {
		t.Fatal(err)
	}
	r := &runner{dir: dir, bin: dir, logs: dir, marker: "MARKED", limit: 2 * time.Second}
	p := Suite{Name: "p", Dir: "p"}
	known := &line{}
	var jobs []job
	for _, name := range []string{"Passes", "FailsOnce", "Fails", "Panics", "Hangs", "WantsMore", "DoesNotCall"} {
		jobs = append(jobs, job{Test{p, "TestHelper" + name, "^TestHelper" + name + "$", nil}, "tcp", nil})
	}
	jobs = append(jobs, job{Test{p, "TestHelperFails", "^TestHelperFails$", nil}, "unix", known})
	told := 0
	got := make(map[string]result)
	for _, res := range r.run(t.Context(), jobs, 2, func(result) { told++ }) {
		got[strings.TrimPrefix(res.Name, "TestHelper")+" "+res.kind] = res
	}
	for name, want := range map[string]struct {
		state state
		tries int
		note  string
	}{
		"Passes tcp":      {pass, 1, ""},
		"FailsOnce tcp":   {pass, 2, ""},
		"Fails tcp":       {fail, 3, "it says why"},
		"Fails unix":      {fail, 1, "it says why"},
		"Panics tcp":      {panicked, 1, "panic: broken"},
		"Hangs tcp":       {hang, 1, ""},
		"WantsMore tcp":   {unsupported, 1, "nearcall does not have: wings"},
		"DoesNotCall tcp": {skip, 1, ""},
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
	if s != race {
		t.Errorf("it is a %s, which may pass when it is tried again", s)
	}
}

func TestATestThatTheBinaryDoesNotHaveFails(t *testing.T) {
	if s, note := judge([]byte("testing: warning: no tests to run\nPASS\n"), nil); s != fail || note == "" {
		t.Errorf("it is a %s: %s", s, note)
	}
}

func TestTheReportFailsForWhatTheTableDoesNotSay(t *testing.T) {
	p := Suite{Name: "p"}
	table, err := withTable("p\\.Known\ttcp\topen\tlater\np\\.AtTimes\ttcp\twording?\tsometimes\n").parseTable()
	if err != nil {
		t.Fatal(err)
	}
	res := func(name string, s state) result {
		return result{job: job{Test{Suite: p, Name: "Test" + name}, "tcp", table.find("p."+name, "tcp")}, state: s, tries: 1}
	}
	for _, c := range []struct {
		name string
		rep  report
		want string
	}{
		{"as it says", report{results: []result{res("New", pass), res("Known", fail), res("AtTimes", fail)}}, ""},
		{"passing at times", report{results: []result{res("AtTimes", pass)}}, ""},
		{"a new failure", report{results: []result{res("New", race)}}, "1 results"},
		{"a line that is needed no longer", report{results: []result{res("Known", pass)}}, "1 results"},
		{"a line without a test", report{stale: table[:1]}, "1 results"},
	} {
		var out bytes.Buffer
		err := c.rep.print(&out)
		if got := err == nil; got != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q\n%s", c.name, err, c.want, &out)
		}
	}
}
