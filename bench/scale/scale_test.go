package main

import (
	"context"
	"encoding/xml"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

func TestMain(m *testing.M) {
	if beASide() {
		return
	}
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE")) // or each side would take a second to exit
	leak.Main(m)
}

func TestEachWayHasALineAndACurve(t *testing.T) {
	needs.UnixSockets(t)
	p := plan{rounds: 2, lasts: time.Millisecond}
	if err := p.choose("unix,tcp", "1,20"); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	svg := filepath.Join(t.TempDir(), "scale.svg")
	if err := p.run(context.Background(), &out, svg); err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(out.String(), "\n\n")
	lines := strings.Split(strings.TrimSuffix(table, "\n"), "\n")
	if want := 2 + len(loads)*2*4; len(lines) != want {
		t.Errorf("%d lines, want %d:\n%s", len(lines), want, table)
	}
	for _, line := range lines {
		if strings.Count(line, "|") != strings.Count(lines[0], "|") {
			t.Errorf("%q has not as many columns as %q", line, lines[0])
		}
	}
	picture, err := os.ReadFile(svg)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Count(string(picture), "<polyline"), len(loads)*len(metrics)*4; got != want {
		t.Errorf("%d curves, want %d", got, want)
	}
	for d := xml.NewDecoder(strings.NewReader(string(picture))); ; {
		_, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, bad := range []string{"NaN", "Inf"} {
		if strings.Contains(string(picture), bad) {
			t.Errorf("the picture has a coordinate that is %s", bad)
		}
	}
}

func TestWhatThereIsNotIsRefused(t *testing.T) {
	for _, bad := range [][2]string{{"udp", "1"}, {"", "1"}, {"unix", "0"}, {"unix", "1,"}, {"unix", "x"}} {
		p := plan{rounds: 1, lasts: 1}
		if err := p.choose(bad[0], bad[1]); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestAHistogramKnowsItsPercentiles(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var h histogram
	var all []time.Duration
	for range 10_000 {
		d := time.Duration(r.ExpFloat64() * float64(time.Millisecond))
		h.add(d)
		all = append(all, d)
	}
	slices.Sort(all)
	n, p50, p99 := h.sum()
	if n != len(all) {
		t.Errorf("%d times, want %d", n, len(all))
	}
	for _, c := range []struct{ got, want time.Duration }{{p50, all[n/2]}, {p99, all[n*99/100]}} {
		if c.got > c.want || c.got < c.want*15/16 {
			t.Errorf("a percentile is %v, want %v", c.got, c.want)
		}
	}
	for _, d := range []time.Duration{0, 1, 15, 16, 17, 31, 32, 1 << 40, 1<<62 + 1} {
		if b := bucketOf(d); least(b) > d || least(b) < d*15/16 {
			t.Errorf("%d ns are in the bucket from %d", d, least(b))
		}
	}
	if h.reset(); bucketOf(-1) != 0 {
		t.Error("a negative time has another bucket than 0")
	}
	if n, _, _ := h.sum(); n != 0 {
		t.Errorf("%d times after a reset", n)
	}
}
