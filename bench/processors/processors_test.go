package main

import (
	"context"
	"os"
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

func TestEachModeHasItsLines(t *testing.T) {
	if _, err := allowedCPUs(); err != nil {
		t.Skip(err)
	}
	for name, test := range map[string]struct {
		networks, stacks string
		busy             string
		idle             time.Duration
		lines            int // with a header and the line below it
	}{
		"calls":         {"shm,unix", "nearcall,grpc-go", "", 0, 2 + 2*3},
		"no baseline":   {"shm", "nearcall,grpc-go", "", 0, 2 + 2},
		"an idle while": {"unix", "grpc-go", "", time.Millisecond, 2 + 1},
		"beside others": {"unix", "nearcall,grpc-go", "0,1", 0, 2 + 2*2*2},
	} {
		t.Run(name, func(t *testing.T) {
			p := plan{rounds: 2, lasts: time.Millisecond, idle: test.idle}
			if err := p.choose(test.networks, test.stacks, "2", "1", test.busy); err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			if err := p.run(context.Background(), &out); err != nil {
				t.Fatal(err)
			}
			_, table, _ := strings.Cut(out.String(), "\n\n")
			lines := strings.Split(strings.TrimSuffix(table, "\n"), "\n")
			if len(lines) != test.lines {
				t.Errorf("%d lines, want %d", len(lines), test.lines)
			}
			for _, line := range lines {
				if strings.Count(line, "|") != strings.Count(lines[0], "|") {
					t.Errorf("%q has not as many columns as %q", line, lines[0])
				}
			}
		})
	}
}

func TestWhatThereIsNotIsRefused(t *testing.T) {
	for _, bad := range [][5]string{
		{"tcp", "nearcall", "1", "1"},
		{"unix", "drpc", "1", "1"},
		{"shm", "grpc-go", "1", "1"},
		{"shm", "nearcall", "0", "1"},
		{"shm", "nearcall", "1", "1,"},
		{"shm", "nearcall", "1", "1", "-1"},
		{"shm", "nearcall", "1", "1", "x"},
	} {
		p := plan{rounds: 1, lasts: 1}
		if err := p.choose(bad[0], bad[1], bad[2], bad[3], bad[4]); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
