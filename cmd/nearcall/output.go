package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// A sink is the standard output of a command, or its standard error. It escapes what a terminal
// could obey, because names, messages and errors can come from a hostile server. It keeps the first
// error of its writes, and discards what comes after it, so the parts of the command that print
// need no errors of their own.
type sink struct {
	io.Writer
	err error
}

// Write implements [io.Writer]. A character that is split between two writes is escaped.
func (s *sink) Write(b []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	if _, s.err = s.Writer.Write([]byte(escape(string(b), "\n\t"))); s.err != nil {
		return 0, s.err
	}
	return len(b), nil
}

// unescaped returns the writer behind a sink, for what the command itself tells a terminal to do.
func unescaped(w io.Writer) io.Writer {
	if s, ok := w.(*sink); ok {
		return s.Writer
	}
	return w
}

// clean returns text from a server in one line, for names and lines that a line break would forge.
func clean(text string) string { return escape(text, "") }

// reordering are characters besides control characters that make a terminal show text in another order
// or line than it has.
var reordering = []*unicode.RangeTable{unicode.Bidi_Control, unicode.Zl, unicode.Zp}

// escape returns text with an escape for each control character that is not in keep, for each
// reordering character, and for each byte that is not UTF-8. It uses JSON's escapes: in JSON only
// strings have such characters, and their values stay the same.
func escape(text, keep string) string {
	var b strings.Builder
	for i, r := range text {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(text[i:], string(r)):
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case unicode.IsControl(r) && !strings.ContainsRune(keep, r), unicode.In(r, reordering...):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// isTerminal reports whether a reader or writer is a terminal.
func isTerminal(w any) bool {
	if out, ok := w.(io.Writer); ok {
		w = unescaped(out)
	}
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// writeTable prints rows with a rule under the first.
func writeTable(w io.Writer, rows [][]string) {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for i, row := range rows {
		for j := range row {
			row[j] = clean(strings.ReplaceAll(row[j], "\n", " "))
		}
		fmt.Fprintln(t, strings.Join(row, "\t"))
		if i == 0 {
			fmt.Fprintln(t, strings.Repeat("---\t", len(row)-1)+"---")
		}
	}
	_ = t.Flush()
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
