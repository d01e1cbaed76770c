package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"
)

// progress says what the tour is doing: in one line that changes where somebody
// watches, and otherwise in a line a call.
type progress struct {
	w     io.Writer
	live  bool
	call  string // that was last spoken of
	width int    // of what stands in the line

	from, share float64 // of the whole, that the tour has which speaks now
}

// part makes what follows a part of the whole.
func (p *progress) part(from, share float64) { p.from, p.share = from, share }

func newProgress(w io.Writer) *progress { return &progress{w: w, live: isTerminal(w)} }

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// say tells that a call is measured over path now, and how much of the whole
// is done.
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

// end leaves the line empty for what is printed next.
func (p *progress) end() {
	if p.live && p.width > 0 {
		p.line("")
		fmt.Fprint(p.w, "\r")
	}
}

// line replaces the line by s.
func (p *progress) line(s string) {
	width := utf8.RuneCountInString(s)
	fmt.Fprintf(p.w, "\r%s%s", s, strings.Repeat(" ", max(p.width-width, 0)))
	p.width = width
}
