package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/nearcall/nearcall/bench/internal/stack"
)

// A way is how calls go from one process to the other.
type way struct{ network, stack string }

func (w way) String() string { return w.stack + " over " + w.network }

// baseline is the way that all others are compared with.
var baseline = way{"unix", stack.GRPC}

// waysOf returns the possible combinations of networks and stacks.
func waysOf(networks, stacks []string) ([]way, error) {
	var chosen []way
	known := make(map[string]bool)
	for _, w := range []way{{"shm", stack.Nearcall}, {"unix", stack.Nearcall}, baseline} {
		known[w.network], known[w.stack] = true, true
		if slices.Contains(networks, w.network) && slices.Contains(stacks, w.stack) {
			chosen = append(chosen, w)
		}
	}
	for _, name := range slices.Concat(networks, stacks) {
		if !known[name] {
			return nil, fmt.Errorf("%q is neither a network nor a stack here", name)
		}
	}
	if len(chosen) == 0 {
		return nil, errors.New("none of the stacks has one of the networks")
	}
	return chosen, nil
}
