package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"
)

// progress prints what the tour is doing: on a terminal in one line that it rewrites,
// otherwise one line per kind of call.
type progress struct {
	w     io.Writer
	live  bool
	call  string // the call that say printed last
	width int    // of the text in the line

	from, share float64 // the current stretch: where in the tour it begins, and how much of the tour it takes
}

// part sets the part of the tour that later calls of say belong to. It begins at from and has the
// length share, both as shares of the whole tour.
func (p *progress) part(from, share float64) { p.from, p.share = from, share }

func newProgress(w io.Writer) *progress { return &progress{w: unescaped(w), live: isTerminal(w)} }

// isTerminal reports whether a reader or writer is a terminal, or another device but the null
// device.
func isTerminal(w any) bool {
	if out, ok := w.(io.Writer); ok {
		w = unescaped(out)
	}
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(info, null)
}

// say prints that a call is now measured over path, and how much is done.
func (p *progress) say(call, path string, done float64) {
	if p.share > 0 {
		done = p.from + p.share*done
	}
	switch {
	case p.live:
		p.line(fmt.Sprintf("%3.0f %%  %s: %s, beside gRPC", 100*done, call, path))
	case call != p.call:
		fmt.Fprintf(p.w, "%3.0f %%  %s\n", 100*done, call)
	}
	p.call = call
}

// end clears the line for other output.
func (p *progress) end() {
	if p.live && p.width > 0 {
		p.line("")
		fmt.Fprint(p.w, "\r")
	}
}

// line replaces the text of the line with s.
func (p *progress) line(s string) {
	width := utf8.RuneCountInString(s)
	fmt.Fprintf(p.w, "\r%s%s", s, strings.Repeat(" ", max(p.width-width, 0)))
	p.width = width
}
