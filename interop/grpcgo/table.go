package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/nearcall/nearcall/interop/grpcgo/shim/near"
)

// A class is the kind of reason why a test fails.
type class string

const (
	absent     class = "absent"     // about a feature that nearcall does not have at all; not run
	documented class = "documented" // docs/semantics.md, docs/migrate.md, docs/targets.md or docs/loop.md names the difference
	wording    class = "wording"    // the text of an error of the connection itself, or of a log line
	harness    class = "harness"    // caused by made-up addresses or another part of this program
	open       class = "open"       // a difference that nearcall will fix
)

var classes = []class{absent, documented, wording, harness, open}

// A line of the table says that some tests fail on some kinds, and why.
type line struct {
	number  int
	tests   *regexp.Regexp // of whole ids
	kinds   []near.Kind
	class   class
	reason  string
	atTimes bool // the tests sometimes pass
}

// kindGroups maps the words of the table to several kinds.
var kindGroups = map[string][]near.Kind{
	"all":     near.Kinds[2:], // those with clients of nearcall
	"paths":   near.Kinds[4:], // of these, those with one server
	"sockets": {near.TCP, near.WebSocket, near.Unix, near.SharedMem},
	"process": {near.InProcess, near.Inline, near.Shared, near.Loop},
	"mapped":  near.Kinds[6:],
}

// parseTable reads lines of four columns, separated by tabs: tests, kinds, class, reason.
// It skips empty lines and lines that begin with #.
func parseTable(text string) (table []line, err error) {
	number := 0
	for row := range strings.Lines(text) {
		number++
		row = strings.TrimRight(row, "\n")
		if row == "" || strings.HasPrefix(row, "#") {
			continue
		}
		l, err := parseLine(row)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		l.number = number
		table = append(table, l)
	}
	return table, nil
}

func parseLine(row string) (l line, err error) {
	columns := strings.Split(row, "\t")
	if len(columns) != 4 || slices.Contains(columns, "") {
		return l, fmt.Errorf("want tests, kinds, class and reason, separated by tabs: %q", row)
	}
	if l.tests, err = regexp.Compile("^(?:" + columns[0] + ")$"); err != nil {
		return l, err
	}
	for _, word := range strings.Fields(columns[1]) {
		group, ok := kindGroups[word]
		if k := near.Kind(word); !ok && slices.Contains(near.Kinds, k) {
			group, ok = []near.Kind{k}, true
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
func find(table []line, id string, on near.Kind) *line {
	for i := range table {
		if l := &table[i]; slices.Contains(l.kinds, on) && l.tests.MatchString(id) {
			return l
		}
	}
	return nil
}

// unused returns the lines that are not the first match of any of tests on any kind.
func unused(table []line, tests []test) (lines []line) {
	used := make(map[int]bool)
	for _, t := range tests {
		for _, k := range near.Kinds {
			if l := find(table, t.id(), k); l != nil && !(t.balanced && !k.Balances()) {
				used[l.number] = true
			}
		}
	}
	for _, l := range table {
		if !used[l.number] {
			lines = append(lines, l)
		}
	}
	return lines
}
