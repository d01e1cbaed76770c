package main

import (
	"context"
	"errors"
	"strings"
	"testing"

	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall/loop"
)

// A probe is a service that records whether it runs as a task of a loop.
type probe struct {
	service
	told chan error
}

func (p probe) EmptyCall(ctx context.Context, in *testpb.Empty) (*testpb.Empty, error) {
	_, err := loop.Await(ctx, func(resume func(struct{}, error)) { resume(struct{}{}, nil) })
	p.told <- err
	return p.service.EmptyCall(ctx, in)
}

// TestWhoRunsOnALoop checks that the rivals that run on a loop are those whose notes say so.
func TestWhoRunsOnALoop(t *testing.T) {
	for _, rival := range onLoop.Rivals {
		if !selected(rival.Name) {
			continue
		}
		t.Run("rival="+rival.Name, func(t *testing.T) {
			var want error
			if strings.HasPrefix(rival.Note, "on no loop") {
				want = loop.ErrNoTask
			}
			p := probe{told: make(chan error, 1)}
			conn, err := rival.Connect(p)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			cancellable, cancel := context.WithCancel(context.Background())
			defer cancel()
			for _, ctx := range []context.Context{context.Background(), cancellable} {
				if _, err := conn.Test.EmptyCall(ctx, new(testpb.Empty)); err != nil {
					t.Fatal(err)
				}
				if err := <-p.told; !errors.Is(err, want) {
					t.Errorf("a handler that waits as a task gets %v, want %v", err, want)
				}
			}
		})
	}
}
