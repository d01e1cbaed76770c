//go:build linux

package attack

import (
	"context"
	"errors"
	"sync"
	"time"

	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
)

// The honest client makes a small call every honestPace, with a timeout of honestLimit.
const (
	honestPace  = 2 * time.Millisecond
	honestLimit = 5 * time.Second
)

// A phase is what an honest client has measured since the last command.
type phase struct {
	Calls, Failed int // calls that have ended
	P50, P99, Max time.Duration
	Failure       string // of the last failed call
}

// honestMain calls the server at the target in args until its standard input ends. It
// answers each command with a phase.
func (p *Program) honestMain(args []string) error {
	if len(args) != 1 {
		return errors.New("it needs the target")
	}
	conn, err := nearcall.NewClient(args[0], p.Client...)
	if err != nil {
		return err
	}
	h := &honest{client: testpb.NewTestServiceClient(conn)}
	go func() {
		for {
			h.call()
			time.Sleep(honestPace)
		}
	}()
	return obey(struct{}{}, func(string) any { return h.next() })
}

type honest struct {
	client testpb.TestServiceClient

	mu     sync.Mutex
	begun  time.Time // of the current call; zero if there is none
	took   []time.Duration
	failed int
	last   error
}

func (h *honest) call() {
	ctx, cancel := context.WithTimeout(context.Background(), honestLimit)
	defer cancel()
	begun := time.Now()
	h.mu.Lock()
	h.begun = begun
	h.mu.Unlock()
	_, err := h.client.EmptyCall(ctx, &testpb.Empty{})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.took = append(h.took, time.Since(begun))
	h.begun = time.Time{}
	if err != nil {
		h.failed++
		h.last = err
	}
}

// next ends a phase and starts another. The current call's time so far counts in the
// latencies, but the call itself counts in the phase that it ends in.
func (h *honest) next() phase {
	h.mu.Lock()
	defer h.mu.Unlock()
	calls := len(h.took)
	if !h.begun.IsZero() {
		h.took = append(h.took, time.Since(h.begun))
	}
	took := sortedCopy(h.took)
	p := phase{Calls: calls, Failed: h.failed, P50: percentile(took, 50), P99: percentile(took, 99), Max: percentile(took, 100)}
	if h.last != nil {
		p.Failure = h.last.Error()
	}
	h.took, h.failed, h.last = h.took[:0], 0, nil
	return p
}
