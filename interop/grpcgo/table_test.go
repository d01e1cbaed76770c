package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nearcall/nearcall/interop/grpcgo/shim/near"
)

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
		if _, err := parseTable(row); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", row, err, want)
		}
	}
}

func TestTheFirstLineThatFitsCounts(t *testing.T) {
	table, err := parseTable("# a comment\na\\.X\ttcp loop\topen\tone\n\na\\..*\tprocess\twording?\ttwo\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		id   string
		on   near.Kind
		want string
	}{
		{"a.X", near.TCP, "one"},
		{"a.X", near.Loop, "one"},
		{"a.X", near.InProcess, "two"},
		{"a.XY", near.Loop, "two"},
		{"a.XY", near.TCP, ""},
		{"b.a.X", near.TCP, ""},
		{"a.X", near.GRPC, ""},
	} {
		got := ""
		if l := find(table, c.id, c.on); l != nil {
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
	table, err := parseTable("a\\.X\ttcp\tabsent\tgone\na\\.Y\tall\topen\tlater\n")
	if err != nil {
		t.Fatal(err)
	}
	p := &pkg{name: "a"}
	all := []test{{p, "TestX", "", false}, {p, "Y", "", false}, {&pkg{name: "b"}, "TestX", "", false}}
	jobs, left := plan(all, []near.Kind{near.TCP, near.InProcess}, []string{"a"}, regexp.MustCompile(""), table)
	var got []string
	for _, j := range jobs {
		got = append(got, j.id()+" "+string(j.kind))
	}
	if want := []string{"a.Y tcp", "a.X inproc", "a.Y inproc"}; !slices.Equal(got, want) {
		t.Errorf("jobs are %q, want %q", got, want)
	}
	if left[near.TCP] != 1 || left[near.InProcess] != 0 {
		t.Errorf("left out: %v", left)
	}
}

// grpc-go is in the module cache, because this module requires it.
func TestEachLineOfTheTableNamesATestOfGRPCGo(t *testing.T) {
	src, err := sources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := convert(t.Context(), dir, src); err != nil {
		t.Fatal(err)
	}
	table, err := parseTable(tableText)
	if err != nil {
		t.Fatal(err)
	}
	all, err := listAll(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 300 {
		t.Errorf("there are %d tests, want hundreds", len(all))
	}
	for _, l := range unused(table, all) {
		t.Errorf("line %d names no test, or is behind lines that name all of its own: %s", l.number, l.reason)
	}
}
