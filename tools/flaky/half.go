package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// A half is all rounds with the same number of busy processes.
type half struct {
	options
	busy int
	dir  string // for logs
	out  io.Writer

	mu       sync.Mutex
	end      time.Time // when the budget is spent
	left     []*binary // binaries that are not running now
	had      map[*binary]turns
	failures int
}

// turns count the rounds that a package has had.
type turns struct {
	n, failed int
	took      time.Duration
}

// run runs the packages' tests until the budget is spent or each package has had its
// rounds.
func (h *half) run(ctx context.Context, budget time.Duration) error {
	stop, err := keepBusy(ctx, h.busy)
	if err != nil {
		return err
	}
	defer stop()
	h.end, h.left, h.had = time.Now().Add(budget), slices.Clone(h.left), map[*binary]turns{}
	var wg sync.WaitGroup
	for range h.jobs {
		wg.Go(func() {
			for b := h.next(); b != nil && ctx.Err() == nil; b = h.next() {
				h.round(ctx, b)
			}
		})
	}
	wg.Wait()
	return nil
}

// next takes from left the package that has used the least time, among those with a round
// left; nil if there is none.
func (h *half) next() *binary {
	h.mu.Lock()
	defer h.mu.Unlock()
	spent := time.Now().After(h.end)
	var least *binary
	for _, b := range h.left {
		had := h.had[b]
		if had.n < h.rounds && (had.n == 0 || !spent) && (least == nil || had.took < h.had[least].took) {
			least = b
		}
	}
	if least != nil {
		h.left = slices.DeleteFunc(h.left, func(b *binary) bool { return b == least })
	}
	return least
}

// round runs b's tests once, and returns b to left.
func (h *half) round(ctx context.Context, b *binary) {
	h.mu.Lock()
	n := h.had[b].n
	h.mu.Unlock()
	path, begun := b.path(n), time.Now()
	log, err := h.test(ctx, b, path)
	took := time.Since(begun)

	h.mu.Lock()
	defer h.mu.Unlock()
	h.left = append(h.left, b)
	if ctx.Err() != nil {
		return
	}
	had := h.had[b]
	had.n++
	had.took += took
	if err != nil {
		had.failed++
		h.failures++
		name := filepath.Join(h.dir, fmt.Sprintf("%s-busy-%d-%d.log", filepath.Base(path), h.busy, had.n))
		if err := os.WriteFile(name, log, 0o666); err != nil {
			fmt.Fprintln(h.out, err)
		}
		fmt.Fprintf(h.out, "FAILED %s, %s, round %d: %v: %s\n\t%s\n", b.pkg, h.name(), had.n, err, tests(log), name)
	}
	h.had[b] = had
}

// test runs the tests once, and fails if they do.
func (h *half) test(ctx context.Context, b *binary, path string) (log []byte, err error) {
	args := []string{"-test.timeout", h.timeout.String(), "-test.parallel", "8"} // as make unit does
	if h.short {
		args = append(args, "-test.short")
	}
	if h.only != "" {
		args = append(args, "-test.run", h.only)
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = b.dir
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	return cmd.CombinedOutput()
}

func (h *half) name() string {
	if h.busy == 0 {
		return "alone"
	}
	return fmt.Sprintf("beside %d busy processes", h.busy)
}

// report prints how many rounds each package had.
func (h *half) report(bins []*binary) {
	fmt.Fprintf(h.out, "%s, %d packages at a time:\n%8s %8s %10s\n", h.name(), h.jobs, "rounds", "failed", "s/round")
	for _, b := range bins {
		had := h.had[b]
		fmt.Fprintf(h.out, "%8d %8d %10.1f  %s\n", had.n, had.failed, had.took.Seconds()/float64(max(had.n, 1)), b.pkg)
	}
}
