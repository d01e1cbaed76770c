package main

import (
	"encoding/xml"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/nearcall/nearcall/bench/internal/stack"
)

// The picture's dimensions in pixels.
const (
	picWidth  = 880
	margin    = 20
	header    = 86
	panelWide = 400
	panelHigh = 200
	gutter    = 56 // of a panel, for the figures beside its curves
	foot      = 40 // of a panel, for the figures below
)

// metrics are what the curves show, each with a row of panels.
var metrics = []struct {
	name  string
	value func(result) float64
	unit  func(float64) string
}{
	{"a second", func(r result) float64 { return r.rate }, func(v float64) string { return short(v, "") }},
	{"99th percentile", func(r result) float64 { return r.p99.Seconds() }, seconds},
	{"memory of each, both processes", func(r result) float64 { return r.memory }, func(v float64) string { return short(v, "B") }},
}

// strokes are the curves' colors, for light and for dark pages, and dashes.
var strokes = map[way]struct{ light, dark, dash string }{
	{"shm", stack.Nearcall}:  {"#0969da", "#4493f8", ""},
	{"unix", stack.Nearcall}: {"#0969da", "#4493f8", "6 3"},
	{"tcp", stack.Nearcall}:  {"#0969da", "#4493f8", "2 3"},
	{"unix", stack.GRPC}:     {"#cf4a3f", "#f47067", "6 3"},
	{"tcp", stack.GRPC}:      {"#cf4a3f", "#f47067", "2 3"},
}

// draw returns a picture of the results: a column of panels for each load, a row for each
// metric, and in each panel a curve for each way. All scales are logarithmic.
func draw(all []result, title string) string {
	high := header + len(metrics)*(panelHigh+foot) + margin
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%[2]d" role="img">`+"\n", picWidth, high)
	fmt.Fprintf(&b, "<title>From one to many</title>\n<desc>%s</desc>\n", escape(title))
	style(&b)
	fmt.Fprintf(&b, `<rect class="ground" x="0.5" y="0.5" width="%d" height="%d" rx="6"/>`+"\n", picWidth-1, high-1)
	text(&b, "title", margin, 30, "From one to many")
	text(&b, "muted", margin, 48, title)
	legend(&b, all)
	for i, load := range loads {
		for j, m := range metrics {
			panel{
				x: float64(margin + gutter + i*(panelWide+margin+margin)), y: float64(header + j*(panelHigh+foot) + 16),
				wide: panelWide - gutter, high: panelHigh - 26,
				name:    load + ": " + m.name,
				results: slices.DeleteFunc(slices.Clone(all), func(r result) bool { return r.load != load || m.value(r) <= 0 }),
				value:   m.value, unit: m.unit,
			}.draw(&b)
		}
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func style(b *strings.Builder) {
	b.WriteString("<style>\n" +
		"text { font: 11px ui-sans-serif, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif }\n" +
		".title { font-size: 17px; font-weight: 600 }\n.name { font-size: 12px; font-weight: 600 }\n" +
		".end { text-anchor: end }\n.middle { text-anchor: middle }\n.curve { fill: none; stroke-width: 2 }\n")
	theme := func(dark bool, ground, edge, text, muted, grid string) {
		fmt.Fprintf(b, ".ground { fill: %s; stroke: %s }\ntext { fill: %s }\n.muted { fill: %s }\n.grid { stroke: %s }\n", ground, edge, text, muted, grid)
		for i, w := range ways {
			color := strokes[w].light
			if dark {
				color = strokes[w].dark
			}
			fmt.Fprintf(b, ".way%d { stroke: %s }\n", i, color)
		}
	}
	theme(false, "#ffffff", "#d1d9e0", "#1f2328", "#59636e", "#e4e8ec")
	b.WriteString("@media (prefers-color-scheme: dark) {\n")
	theme(true, "#0d1117", "#3d444d", "#e6edf3", "#9198a1", "#262c34")
	b.WriteString("}\n</style>\n")
}

func legend(b *strings.Builder, all []result) {
	x := float64(margin)
	for i, w := range ways {
		if !slices.ContainsFunc(all, func(r result) bool { return r.way == w }) {
			continue
		}
		fmt.Fprintf(b, `<line class="curve way%d" stroke-dasharray="%s" x1="%.0f" y1="62" x2="%.0f" y2="62"/>`+"\n", i, strokes[w].dash, x, x+28)
		text(b, "", x+34, 66, w.String())
		x += 150
	}
}

// A panel has the curves of one load and one metric.
type panel struct {
	x, y, wide, high float64
	name             string
	results          []result
	value            func(result) float64
	unit             func(float64) string
}

func (p panel) draw(b *strings.Builder) {
	text(b, "name", p.x, p.y-6, p.name)
	if len(p.results) == 0 {
		return
	}
	wide := axis{p.x, p.x + p.wide, 1, 10}
	high := axis{p.y + p.high, p.y, math.Inf(1), 0}
	for _, r := range p.results {
		wide.to = max(wide.to, float64(r.open))
		high.from, high.to = min(high.from, p.value(r)), max(high.to, p.value(r))
	}
	high.from, high.to = powerBelow(high.from), 10*powerBelow(high.to*0.999)
	for v := high.from; v <= high.to*1.001; v *= 10 {
		fmt.Fprintf(b, `<line class="grid" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1[2]f"/>`+"\n", p.x, high.at(v), p.x+p.wide)
		text(b, "muted end", p.x-6, high.at(v)+4, p.unit(v))
	}
	for v := 1.0; v <= wide.to; v *= 10 {
		fmt.Fprintf(b, `<line class="grid" x1="%.1f" y1="%.1f" x2="%.1[1]f" y2="%.1f"/>`+"\n", wide.at(v), p.y, p.y+p.high)
		text(b, "muted middle", wide.at(v), p.y+p.high+16, short(v, ""))
	}
	for i, w := range ways {
		var points []string
		for _, r := range p.results {
			if r.way == w {
				points = append(points, fmt.Sprintf("%.1f,%.1f", wide.at(float64(r.open)), high.at(p.value(r))))
			}
		}
		if len(points) > 0 {
			fmt.Fprintf(b, `<polyline class="curve way%d" stroke-dasharray="%s" points="%s"/>`+"\n", i, strokes[w].dash, strings.Join(points, " "))
		}
	}
}

// An axis is a logarithmic scale, from a position and a value to others.
type axis struct{ start, stop, from, to float64 }

func (a axis) at(v float64) float64 {
	return a.start + (a.stop-a.start)*math.Log(v/a.from)/math.Log(a.to/a.from)
}

// powerBelow returns the power of ten that is not above v.
func powerBelow(v float64) float64 { return math.Pow(10, math.Floor(math.Log10(v)+1e-9)) }

// short returns v with a prefix for thousands.
func short(v float64, unit string) string {
	prefix := ""
	for _, larger := range []string{"k", "M", "G"} {
		if v < 999.5 {
			break
		}
		v, prefix = v/1000, larger
	}
	return strings.TrimSpace(fmt.Sprintf("%.3g %s%s", v, prefix, unit))
}

func seconds(v float64) string {
	unit := "s"
	for _, smaller := range []string{"ms", "µs", "ns"} {
		if v >= 0.9995 {
			break
		}
		v, unit = v*1000, smaller
	}
	return fmt.Sprintf("%.3g %s", v, unit)
}

func text(b *strings.Builder, class string, x, y float64, s string) {
	fmt.Fprintf(b, `<text class="%s" x="%.1f" y="%.1f">%s</text>`+"\n", class, x, y, escape(s))
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // strings.Builder does not fail
	return b.String()
}
