package main

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The picture's dimensions in pixels.
const (
	picWidth  = 880
	picMargin = 20
	picGutter = 190 // for the names of rows
	picLabel  = 104 // for the figures at the ends of the longest bars
	picBar    = 10
	picPitch  = 14 // distance of bars
	picLine   = 15 // distance of lines of text
	picGap    = 16 // between rows
)

// A picture is a chart being drawn, from top to bottom.
type picture struct {
	strings.Builder
	y      float64
	lo, hi float64 // the range of ratios of the scale
	rivals []Rival
	base   string // the baseline's name
}

// writeShortSVG draws the chosen rows, without rivals that are not RPC: bars that are a
// hundred times as long as all others would hide the differences of these.
func writeShortSVG(w io.Writer, r *Report) error {
	short := *r
	short.Results = slices.DeleteFunc(slices.Clone(r.Results), func(v Result) bool { return !v.Row.Chosen || v.Rival.Limit })
	if len(short.Results) == 0 {
		return errors.New("none of the rows is one of the short picture's")
	}
	return writeSVG(w, &short)
}

// writeSVG draws a bar for each result, starting at the line of the baseline: to the left if
// it is faster, to the right if it is slower. The picture has a background, so that it is
// readable on any page.
func writeSVG(w io.Writer, r *Report) error {
	body := picture{rivals: r.rivals(), base: r.Table.Baseline}
	body.fit(r.Results)
	body.heading(r)
	body.legend()
	body.axis(r.rows())
	for _, results := range r.rows() {
		body.row(results)
	}
	body.y += picLine + picMargin/2
	body.ticks(body.y - picMargin/2)

	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %.0f" width="%[1]d" height="%.0[2]f" role="img">`+"\n", picWidth, body.y)
	fmt.Fprintf(&b, "<title>%s</title>\n<desc>%s</desc>\n", escape(r.title()), escape(r.header()))
	style(&b, body.rivals)
	fmt.Fprintf(&b, `<rect class="ground" x="0.5" y="0.5" width="%d" height="%.0f" rx="6"/>`+"\n", picWidth-1, body.y-1)
	b.WriteString(body.String())
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func style(b *strings.Builder, rivals []Rival) {
	b.WriteString("<style>\n" +
		"text { font: 11px ui-sans-serif, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif }\n" +
		".title { font-size: 17px; font-weight: 600 }\n" +
		".name { font-size: 12px; font-weight: 600 }\n" +
		".figure { paint-order: stroke; stroke-width: 3px; stroke-linejoin: round }\n" +
		".end { text-anchor: end }\n" +
		".middle { text-anchor: middle }\n")
	theme := func(dark bool, ground, edge, text, muted, grid string) {
		fmt.Fprintf(b, ".ground { fill: %s; stroke: %s }\n.figure { stroke: %[1]s }\ntext { fill: %[3]s }\n.muted { fill: %s }\n"+
			".grid { stroke: %s }\n.base { stroke: %[3]s; stroke-width: 1.5 }\n", ground, edge, text, muted, grid)
		for i, rival := range rivals {
			color := colors[rival.Name].Light
			if dark {
				color = colors[rival.Name].Dark
			}
			fmt.Fprintf(b, ".rival%d { fill: %s }\n", i, color)
		}
	}
	theme(false, "#ffffff", "#d1d9e0", "#1f2328", "#59636e", "#e4e8ec")
	b.WriteString("@media (prefers-color-scheme: dark) {\n")
	theme(true, "#0d1117", "#3d444d", "#e6edf3", "#9198a1", "#262c34")
	b.WriteString("}\n</style>\n")
}

// fit makes the scale wide enough for all ratios, and for the baseline's.
func (p *picture) fit(results []Result) {
	p.lo, p.hi = 1/1.5, 1.5
	for _, r := range results {
		p.lo, p.hi = min(p.lo, r.Ratio), max(p.hi, r.Ratio)
	}
}

// x returns the position of a ratio on the scale, which is logarithmic.
func (p *picture) x(ratio float64) float64 {
	const from, to = picMargin + picGutter + picLabel, picWidth - picMargin - picLabel
	return from + (to-from)*math.Log(ratio/p.lo)/math.Log(p.hi/p.lo)
}

func (p *picture) text(class string, x, y float64, s string) {
	fmt.Fprintf(p, `<text class="%s" x="%.1f" y="%.1f">%s</text>`+"\n", class, x, y, escape(s))
}

func (p *picture) line(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(p, `<line class="%s" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`+"\n", class, x1, y1, x2, y2)
}

func (p *picture) heading(r *Report) {
	p.y = 34
	p.text("title", picMargin, p.y, r.title())
	p.y += 7
	for _, line := range wrap(r.header(), picWidth-2*picMargin) {
		p.y += picLine
		p.text("muted", picMargin, p.y, line)
	}
	p.y += 12
}

// legend draws the rivals' names with their colors, in as many lines as needed.
func (p *picture) legend() {
	const box, gap = 11, 18
	x := float64(picMargin)
	p.y += picLine
	for i, rival := range p.rivals {
		name := rival.Name
		if name == p.base {
			name += ", the line at 1"
		}
		width := box + 6 + textWidth(name)
		if x > picMargin && x+width > picWidth-picMargin {
			x = picMargin
			p.y += picLine + 3
		}
		if rival.Name == p.base {
			p.line("base", x+box/2.0, p.y-box+1, x+box/2.0, p.y+1)
		} else {
			fmt.Fprintf(p, `<rect class="rival%d" x="%.1f" y="%.1f" width="%d" height="%[4]d" rx="2"/>`+"\n", i, x, p.y-box+1, box)
		}
		p.text("", x+box+6, p.y, name)
		x += width + gap
	}
	p.y += 26
}

// axis draws the scale behind the bars.
func (p *picture) axis(rows [][]Result) {
	p.text("muted end", p.x(1)-10, p.y, "faster ←")
	p.text("muted", p.x(1)+10, p.y, "→ slower (log scale)")
	p.y += picLine
	p.ticks(p.y)
	p.y += 6
	bottom := p.y
	for _, results := range rows {
		p.line("grid", picMargin, bottom, picWidth-picMargin, bottom)
		bottom += p.rowHeight(results)
	}
	for _, v := range p.marks() {
		class := "grid"
		if v == 1 {
			class = "base"
		}
		p.line(class, p.x(v), p.y, p.x(v), bottom)
	}
}

func (p *picture) ticks(y float64) {
	for _, v := range p.marks() {
		p.text("muted middle", p.x(v), y, strconv.FormatFloat(v, 'f', -1, 64)+"×")
	}
}

// marks returns the powers of ten on the scale, and values between them if the scale is
// short.
func (p *picture) marks() []float64 {
	steps := []float64{1}
	if p.hi/p.lo < 100 {
		steps = []float64{1, 2, 5}
	}
	var marks []float64
	for power := math.Floor(math.Log10(p.lo)); power <= math.Log10(p.hi); power++ {
		for _, step := range steps {
			v := step * math.Pow(10, power)
			if power < 0 {
				v = step / math.Pow(10, -power) // exact, so that 0.1 prints as such
			}
			if v >= p.lo && v <= p.hi {
				marks = append(marks, v)
			}
		}
	}
	return marks
}

// bars returns the results that have a bar: all but the baseline.
func bars(results []Result, base string) []Result {
	var some []Result
	for _, r := range results {
		if r.Rival.Name != base {
			some = append(some, r)
		}
	}
	return some
}

func (p *picture) rowHeight(results []Result) float64 {
	const lines = 3 // of text in the gutter
	return float64(max(len(bars(results, p.base))*picPitch, lines*picLine) + picGap)
}

func (p *picture) row(results []Result) {
	height := p.rowHeight(results)
	middle := p.y + height/2

	names := []string{results[0].Row.Title(), results[0].Row.Context() + " context"}
	if base, ok := find(results, p.base); ok {
		names = append(names, p.base+" "+nanoseconds(base.Ns))
	}
	y := middle - float64(len(names)*picLine)/2 + 11
	for i, name := range names {
		class := "muted"
		if i == 0 {
			class = "name"
		}
		p.text(class, picMargin, y, name)
		y += picLine
	}

	some := bars(results, p.base)
	y = middle - float64(len(some)*picPitch)/2 + (picPitch-picBar)/2
	for _, r := range some {
		p.bar(r, y)
		y += picPitch
	}
	p.y += height
}

func (p *picture) bar(r Result, y float64) {
	one, end := p.x(1), p.x(r.Ratio)
	who := slices.IndexFunc(p.rivals, func(v Rival) bool { return v.Name == r.Rival.Name })
	fmt.Fprintf(p, `<rect class="rival%d" x="%.1f" y="%.1f" width="%.1f" height="%d" rx="1.5"/>`+"\n",
		who, min(one, end), y, max(math.Abs(end-one), 2), picBar)
	figures := ratio(r.Ratio) + "×"
	if end < one {
		p.text("figure end", end-5, y+picBar-1, figures)
	} else {
		p.text("figure", max(end, one+2)+5, y+picBar-1, figures)
	}
}

// wrap breaks s at spaces into lines of at most width pixels. A longer word stays whole.
func wrap(s string, width float64) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(s) {
		switch {
		case line == "":
			line = word
		case textWidth(line+" "+word) > width:
			lines = append(lines, line)
			line = word
		default:
			line += " " + word
		}
	}
	return append(lines, line)
}

// textWidth estimates the width of s in pixels. Fonts differ.
func textWidth(s string) float64 { return 6.2 * float64(utf8.RuneCountInString(s)) }

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s))
	return b.String()
}
