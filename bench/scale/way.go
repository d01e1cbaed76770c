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

// ways are all there are.
var ways = []way{
	{"shm", stack.Nearcall}, {"unix", stack.Nearcall}, {"tcp", stack.Nearcall},
	{"unix", stack.GRPC}, {"tcp", stack.GRPC},
}

// waysOf returns the ways over these networks, and those that they are compared with.
func waysOf(networks []string) ([]way, error) {
	known := []string{"shm", "unix", "tcp"}
	for _, name := range networks {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("-networks: there is no %q here, but %v", name, known)
		}
	}
	var chosen []way
	for _, w := range ways {
		shm := w == way{"unix", stack.GRPC} && slices.Contains(networks, "shm")
		if shm || slices.Contains(networks, w.network) {
			chosen = append(chosen, w)
		}
	}
	if len(chosen) == 0 {
		return nil, errors.New("-networks: there is none")
	}
	return chosen, nil
}

// baselineOf returns the index of the way that w is compared with: grpc-go over the same
// network, or over unix sockets for shared memory.
func baselineOf(among []way, w way) int {
	if w.network == "shm" {
		w.network = "unix"
	}
	w.stack = stack.GRPC
	return slices.Index(among, w)
}
