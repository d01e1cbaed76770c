package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearcall/nearcall/internal/testing/leak"
)

func TestMain(m *testing.M) {
	if beASide() {
		return
	}
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE")) // or each side would take a second to exit
	leak.Main(m)
}

func TestFlagsThatMakeNoSense(t *testing.T) {
	kernel := []string{"cubic", "reno"}
	for of, choose := range map[string]func(*plan) error{
		"-delay":      func(p *plan) error { return p.chooseLink(-time.Second, 1, 100, time.Second) },
		"-loss":       func(p *plan) error { return p.chooseLink(time.Second, 100, 100, time.Second) },
		"-rate":       func(p *plan) error { return p.chooseLink(time.Second, 1, 0, time.Second) },
		"-queue":      func(p *plan) error { return p.chooseLink(time.Second, 1, 100, 0) },
		"-beside":     func(p *plan) error { return p.chooseLoads("up,sideways", time.Second, 200) },
		"-duration":   func(p *plan) error { return p.chooseLoads("up", time.Hour, 200) },
		"-calls":      func(p *plan) error { return p.chooseLoads("up", time.Second, 0) },
		"-stacks":     func(p *plan) error { return p.chooseWays("pigeon", "", kernel) },
		"-stacks ":    func(p *plan) error { return p.chooseWays("(", "", kernel) },
		"-congestion": func(p *plan) error { return p.chooseWays("", "reno,bbr", kernel) },
	} {
		if err := choose(new(plan)); err == nil || !strings.HasPrefix(err.Error(), strings.TrimSpace(of)) {
			t.Errorf("%s: %v", of, err)
		}
	}
}

func TestALinkIsAsTheFlagsSay(t *testing.T) {
	var p plan
	if err := p.chooseLink(50*time.Millisecond, 1, 100, 100*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if want := (Conditions{Delay: 25 * time.Millisecond, Loss: 0.01, Rate: 12_500_000, Queue: 1_250_000}); p.conditions != want {
		t.Errorf("the link is %+v, want %+v", p.conditions, want)
	}
}

// TestEachControlOfTheKernelIsMeasured checks what is chosen by default.
func TestEachControlOfTheKernelIsMeasured(t *testing.T) {
	for _, c := range []struct{ match, congestion, kernel, want string }{
		{"TCP", "", "bbr cubic reno vegas", "grpc-go, TCP, reno; grpc-go, TCP, cubic; grpc-go, TCP, bbr; nearcall, TCP, reno; nearcall, TCP, cubic; nearcall, TCP, bbr"},
		{"TCP", "", "reno", "grpc-go, TCP, reno; nearcall, TCP, reno"},
		{"grpc", "vegas", "reno vegas", "grpc-go, TCP, vegas"},
		{"nearcall", "cubic", "cubic reno", "nearcall, QUIC, reno; nearcall, TCP, cubic"},
	} {
		var p plan
		err := p.chooseWays(c.match, c.congestion, strings.Fields(c.kernel))
		var got []string
		for _, w := range p.ways {
			got = append(got, w.String())
		}
		if s := strings.Join(got, "; "); err != nil || s != c.want {
			t.Errorf("%+v: %s, %v", c, s, err)
		}
	}
}

// invented is a plan with results.
func invented(t *testing.T) (*plan, []result) {
	t.Helper()
	p := new(plan)
	if err := p.chooseLink(50*time.Millisecond, 1, 100, 100*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if err := p.chooseLoads("up,nothing", 10*time.Second, 200); err != nil {
		t.Fatal(err)
	}
	ms := time.Millisecond
	return p, []result{
		{way{base, "reno"}, upload, measurement{2000, 60 * ms, 150 * ms}, 250_000},
		{way{"grpc-go, TCP", "reno"}, upload, measurement{2000, 966 * ms, 1500 * ms}, 340_000},
		{way{base, "reno"}, nothing, measurement{1999, 50 * ms, 100 * ms}, 0},
		{way{"grpc-go, TCP", "reno"}, nothing, measurement{2000, 55 * ms, 120 * ms}, 0},
	}
}

func TestTheTableComparesWithQUIC(t *testing.T) {
	p, results := invented(t)
	for load, want := range map[string][]string{
		upload: {
			"| " + base + " | reno | 60.0 ms |  | 150 ms |  | 2000 | 0.25 MB/s |",
			"| grpc-go, TCP | reno | 966 ms | 16× | 1500 ms | 10× | 2000 | 0.34 MB/s |",
		},
		nothing: {
			"| " + base + " | reno | 50.0 ms |  | 100 ms |  | 1999 |  |",
			"| grpc-go, TCP | reno | 55.0 ms | 1.1× | 120 ms | 1.2× | 2000 |  |",
		},
	} {
		table, below, _ := strings.Cut(string(p.markdown(load, results)), "\n\n")
		if lines := strings.Split(table, "\n")[2:]; strings.Join(lines, "\n") != strings.Join(want, "\n") {
			t.Errorf("%s:\n%s\nwant\n%s", load, strings.Join(lines, "\n"), strings.Join(want, "\n"))
		}
		if !strings.Contains(below, "50ms there and back on an empty link, 1 % of the packets lost in each direction, 100 Mbit/s, a queue of 1250 kB; 200 calls a second") {
			t.Errorf("the conditions are %s", below)
		}
	}
}

func TestTheTableIsWrittenBetweenItsMarkers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "page.md")
	const page = "before\n<!-- lossy up: begin -->\nold\n<!-- lossy up: end -->\nafter\n"
	if err := os.WriteFile(file, []byte(page), 0o666); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		at, err := placeIn(file, upload)
		if err == nil {
			err = at.put([]byte("new\n"))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != strings.Replace(page, "old", "new", 1) {
		t.Errorf("the page is %q, %v", got, err)
	}
	if err := run([]string{"-beside", "down", "-write", file}); err == nil || !strings.Contains(err.Error(), "<!-- lossy down: begin -->") {
		t.Errorf("a page without markers: %v", err)
	}
}
