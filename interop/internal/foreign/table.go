package foreign

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A class is the kind of reason why a test fails.
type class string

const (
	absent     class = "absent"     // about a feature that nearcall does not have at all; not run
	documented class = "documented" // the documentation names the difference
	wording    class = "wording"    // the text of an error of the connection itself, or of a log line
	harness    class = "harness"    // caused by the program that runs the tests
	open       class = "open"       // a difference that nearcall will fix
)

var classes = []class{absent, documented, wording, harness, open}

// A table says which tests fail, and why.
type table []line

// A line of the table says that some tests fail on some kinds, and why.
type line struct {
	number  int
	tests   *regexp.Regexp // of whole ids
	kinds   []string
	class   class
	reason  string
	atTimes bool // the tests sometimes pass
}

// parseTable reads lines of four columns, separated by tabs: tests, kinds, class, reason.
// It skips empty lines and lines that begin with #.
func (p *Project) parseTable() (t table, err error) {
	number := 0
	for row := range strings.Lines(p.Table) {
		number++
		row = strings.TrimRight(row, "\n")
		if row == "" || strings.HasPrefix(row, "#") {
			continue
		}
		l, err := p.parseLine(row)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		l.number = number
		t = append(t, l)
	}
	return t, nil
}

func (p *Project) parseLine(row string) (l line, err error) {
	columns := strings.Split(row, "\t")
	if len(columns) != 4 || slices.Contains(columns, "") {
		return l, fmt.Errorf("want tests, kinds, class and reason, separated by tabs: %q", row)
	}
	if l.tests, err = regexp.Compile("^(?:" + columns[0] + ")$"); err != nil {
		return l, err
	}
	for _, word := range strings.Fields(columns[1]) {
		group, ok := p.Groups[word]
		if !ok && slices.Contains(p.Kinds, word) {
			group, ok = []string{word}, true
		}
		if !ok {
			return l, fmt.Errorf("there is no kind %q", word)
		}
		l.kinds = append(l.kinds, group...)
	}
	name, atTimes := strings.CutSuffix(columns[2], "?")
	l.class, l.reason, l.atTimes = class(name), columns[3], atTimes
	if !slices.Contains(classes, l.class) {
		return l, fmt.Errorf("there is no class %q", name)
	}
	return l, nil
}

// find returns the first line that matches a test on a kind, or nil.
func (t table) find(id, kind string) *line {
	for i := range t {
		if l := &t[i]; slices.Contains(l.kinds, kind) && l.tests.MatchString(id) {
			return l
		}
	}
	return nil
}

// unused returns the lines that are not the first match of any of tests on any kind.
func (t table) unused(tests []Test, kinds []string) (lines table) {
	used := make(map[int]bool)
	for _, test := range tests {
		for _, k := range kinds {
			if l := t.find(test.id(), k); l != nil && (test.Kinds == nil || slices.Contains(test.Kinds, k)) {
				used[l.number] = true
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(t), func(l line) bool { return used[l.number] })
}

// Check returns an error if the table cannot be read, or has lines for none of tests.
func (p *Project) Check(tests []Test) error {
	t, err := p.parseTable()
	if err != nil {
		return err
	}
	for _, l := range t.unused(tests, p.Kinds) {
		return fmt.Errorf("line %d names no test, or is behind lines that name all of its own: %s", l.number, l.reason)
	}
	return nil
}
