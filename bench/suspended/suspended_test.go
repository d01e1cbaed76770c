package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nearcall/nearcall/internal/testing/leak"
)

func TestMain(m *testing.M) {
	if beTheServer() {
		return
	}
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE")) // or each second process would take a second to exit
	leak.Main(m)
}

func TestEachWayHasALineForEachCrowd(t *testing.T) {
	p := plan{tasks: 20, pairs: 2, lasts: time.Millisecond}
	if err := p.choose(""); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := p.run(&out); err != nil {
		t.Fatal(err)
	}
	parts := strings.SplitN(out.String(), "\n\n", 3)
	if len(parts) != 3 || !strings.Contains(parts[0], "20 suspended tasks; medians of 2 pairs of 1ms") || !strings.Contains(parts[2], "at most 1.5 times as long") {
		t.Fatalf("it printed\n%s", out.String())
	}
	lines := strings.Split(parts[1], "\n")
	if want := 2 + len(ways)*len(crowds); len(lines) != want {
		t.Errorf("%d lines, want %d", len(lines), want)
	}
	for _, line := range lines {
		if strings.Count(line, "|") != strings.Count(lines[0], "|") {
			t.Errorf("%q has not as many columns as %q", line, lines[0])
		}
	}
}

func TestARatioOverThePromiseIsTold(t *testing.T) {
	pairs := []pair{
		{times{10, 100}, times{15, 151}},
		{times{10, 100}, times{90, 900}},
		{times{10, 100}, times{10, 100}},
	}
	tasks, err := crowdNamed("tasks in Sleep")
	if err != nil {
		t.Fatal(err)
	}
	onLoop := line{ways[0], tasks}
	broken := onLoop.broken(pairs)
	if want := onLoop.String() + ": p99 is 1.51 times as long"; len(broken) != 1 || broken[0] != want {
		t.Errorf("broken is %q, want %q", broken, want)
	}
	if broken := (line{ways[0], crowd{stranger: true}}).broken(pairs); len(broken) > 0 {
		t.Errorf("a promise that is not made is broken: %q", broken)
	}
	p := plan{lines: []line{onLoop}}
	for _, c := range []struct {
		broken []string
		want   string
	}{{nil, "was kept.\n"}, {broken, "was not kept:\n\n- " + broken[0] + "\n"}} {
		var out strings.Builder
		if err := p.verdict(&out, c.broken); err != nil || !strings.HasSuffix(out.String(), c.want) {
			t.Errorf("the verdict is %q, %v", out.String(), err)
		}
	}
}

func TestPercentilesAreOfTheCalls(t *testing.T) {
	took := make([]time.Duration, 1000)
	for i := range took {
		took[i] = time.Duration(1000 - i)
	}
	if got, want := sum(took), (times{500, 990}); got != want {
		t.Errorf("of 1 to 1000 they are %v, want %v", got, want)
	}
	if got, want := sum([]time.Duration{7}), (times{7, 7}); got != want {
		t.Errorf("of 7 alone they are %v, want %v", got, want)
	}
}

func TestWhatThereIsNotIsRefused(t *testing.T) {
	good := plan{tasks: 1, pairs: 1, lasts: 1}
	for _, bad := range []struct {
		plan  plan
		lines string
	}{
		{plan{tasks: 0, pairs: 1, lasts: 1}, ""},
		{plan{tasks: 1, pairs: 0, lasts: 1}, ""},
		{plan{tasks: 1, pairs: 1}, ""},
		{good, "pigeon"},
		{good, "("},
	} {
		if err := bad.plan.choose(bad.lines); err == nil {
			t.Errorf("%+v, %q is taken", bad.plan, bad.lines)
		}
	}
	for _, s := range []setup{{Crowd: "idlers"}, {Crowd: crowds[0].name, Loop: "threads", Target: "tcp:127.0.0.1:0"}} {
		if err := s.serve(strings.NewReader(""), new(strings.Builder)); err == nil {
			t.Errorf("%+v is served", s)
		}
	}
}
