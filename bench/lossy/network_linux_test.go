package main

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearcall/nearcall/internal/testing/needs"
)

// brief is a plan of short measurements on a fast link.
func brief(t *testing.T, stacks, loads string) *plan {
	t.Helper()
	p := &plan{warm: 50 * time.Millisecond, seed: 1}
	if err := p.chooseLink(10*time.Millisecond, 0.1, 1000, 100*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if err := p.chooseLoads(loads, 100*time.Millisecond, 200); err != nil {
		t.Fatal(err)
	}
	if err := p.chooseWays(stacks, "reno", []string{"reno"}); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestCallsTakeAtLeastTheLinksTime measures each stack beside each load, and checks what
// must hold on any machine.
func TestCallsTakeAtLeastTheLinksTime(t *testing.T) {
	needs.TUN(t)
	p := brief(t, "", strings.Join(loads, ","))
	var progress strings.Builder
	results, err := p.run(context.Background(), &progress)
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != len(loads)*len(stacks) {
		t.Errorf("%d results of %d stacks", len(results), len(stacks))
	}
	for _, r := range results {
		calls, least := 20, 10*time.Millisecond
		if r.load == fresh {
			calls, least = 2, 20*time.Millisecond // a handshake and a call
		}
		if r.Calls != calls || r.P50 < least || r.P99 < r.P50 {
			t.Errorf("%v, beside %s: %d calls, p50 %v, p99 %v", r.way, r.load, r.Calls, r.P50, r.P99)
		}
	}
	if got := strings.Count(progress.String(), " found the queue full\n"); got != 2*len(results) {
		t.Errorf("what happened to the packets is told %d times:\n%s", got, progress.String())
	}
}

// TestTheLoadIsCountedWhereItArrives gives a load half a second, in which some of it must arrive.
func TestTheLoadIsCountedWhereItArrives(t *testing.T) {
	needs.TUN(t)
	p := brief(t, "nearcall, TCP", "up,down")
	p.lasts = 500 * time.Millisecond
	results, err := p.run(context.Background(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if r.rate <= 0 || r.rate > 2*p.conditions.Rate {
			t.Errorf("beside %s: %.0f bytes a second", r.load, r.rate)
		}
	}
}

// TestTheDeviceIsOnlyInTheNamespace checks that measurements cannot meet other traffic.
func TestTheDeviceIsOnlyInTheNamespace(t *testing.T) {
	needs.TUN(t)
	interfaces := func() []string {
		t.Helper()
		all, err := net.Interfaces()
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, i := range all {
			names = append(names, i.Name)
		}
		return names
	}
	before := interfaces()
	n, err := newNetwork(Conditions{Rate: 1e6, Queue: 1e4}, 1, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	if during := interfaces(); !slices.Equal(during, before) {
		t.Errorf("outside there are %v, and not %v", during, before)
	}
	var inside []string
	if err := n.ends[0].do(func() error {
		inside = interfaces()
		return nil
	}); err != nil || !slices.Equal(inside, []string{"lo", "link"}) {
		t.Errorf("inside there are %v, %v", inside, err)
	}
	if err := n.close(); err != nil {
		t.Error(err)
	}
}

func TestAnInterruptEndsTheMeasurement(t *testing.T) {
	needs.TUN(t)
	interrupt := errors.New("interrupted")
	p := brief(t, "grpc-go", upload)
	p.lasts = longest
	ctx, cancel := context.WithTimeoutCause(t.Context(), 300*time.Millisecond, interrupt)
	defer cancel()
	if _, err := p.run(ctx, io.Discard); !errors.Is(err, interrupt) {
		t.Errorf("it ended with %v", err)
	}
}

func TestAServerThatCannotServeIsAnError(t *testing.T) {
	needs.TUN(t)
	p := brief(t, "grpc-go", upload)
	p.ways[0].Congestion = "pigeon"
	if _, err := p.run(t.Context(), io.Discard); err == nil || !strings.HasPrefix(err.Error(), "grpc-go, TCP, pigeon, beside up: ") {
		t.Errorf("got %v", err)
	}
}
