package foreign

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// withTable returns a project with a few kinds and a table.
func withTable(text string) *Project {
	return &Project{Table: text, Kinds: []string{"grpc", "tcp", "inproc", "loop"}, Groups: map[string][]string{
		"process": {"inproc", "loop"}, "all": {"tcp", "inproc", "loop"},
	}}
}

func TestALineHasFourColumnsThatMakeSense(t *testing.T) {
	for row, want := range map[string]string{
		"a\ttcp\topen":             "separated by tabs",
		"a\ttcp\topen\t":           "separated by tabs",
		"a b\ttcp open\tb\tc\td":   "separated by tabs",
		"a(\ttcp\topen\tb":         "missing closing",
		"a\tudp\topen\tb":          `no kind "udp"`,
		"a\ttcp\tclosed\tb":        `no class "closed"`,
		"# a\ttcp\n\na\ttcp\tx\tb": "line 3",
	} {
		if _, err := withTable(row).parseTable(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", row, err, want)
		}
	}
}

func TestTheFirstLineThatFitsCounts(t *testing.T) {
	table, err := withTable("# a comment\na\\.X\ttcp loop\topen\tone\n\na\\..*\tprocess\twording?\ttwo\n").parseTable()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		id   string
		on   string
		want string
	}{
		{"a.X", "tcp", "one"},
		{"a.X", "loop", "one"},
		{"a.X", "inproc", "two"},
		{"a.XY", "loop", "two"},
		{"a.XY", "tcp", ""},
		{"b.a.X", "tcp", ""},
		{"a.X", "grpc", ""},
	} {
		got := ""
		if l := table.find(c.id, c.on); l != nil {
			got = l.reason
		}
		if got != c.want {
			t.Errorf("%s on %s: line %q, want %q", c.id, c.on, got, c.want)
		}
	}
	if table[0].atTimes || !table[1].atTimes || table[1].class != wording {
		t.Errorf("lines are %+v", table)
	}
}

func TestAbsentTestsAreNotRun(t *testing.T) {
	table, err := withTable("a\\.X\ttcp\tabsent\tgone\na\\.Y\tall\topen\tlater\n").parseTable()
	if err != nil {
		t.Fatal(err)
	}
	p := Suite{Name: "a"}
	all := []Test{{Suite: p, Name: "TestX"}, {Suite: p, Name: "Y"}, {Suite: p, Name: "Z", Kinds: []string{"loop"}}, {Suite: Suite{Name: "b"}, Name: "TestX"}}
	left := make(map[string]int)
	jobs := plan(all, options{kinds: []string{"tcp", "inproc"}, suites: []string{"a"}, tests: regexp.MustCompile("")}, table, left)
	var got []string
	for _, j := range jobs {
		got = append(got, j.id()+" "+j.kind)
	}
	if want := []string{"a.Y tcp", "a.X inproc", "a.Y inproc"}; !slices.Equal(got, want) {
		t.Errorf("jobs are %q, want %q", got, want)
	}
	if left["tcp"] != 1 || left["inproc"] != 0 {
		t.Errorf("left out: %v", left)
	}
}
