package main

import (
	"fmt"
	"os"
	"strconv"
)

// liveEnv is the environment variable with the live heap of each process of the tournament, in MiB.
// Without it the processes have hardly any, and Go collects their garbage after each 4 MB.
const liveEnv = "NEARCALL_BENCH_LIVE"

// A cell is one of many small objects with pointers, of which most programs' heaps consist.
type cell struct {
	next *cell
	_    [56]byte
}

var cells *cell

// live allocates what liveEnv says.
func live() {
	s := os.Getenv(liveEnv)
	if s == "" {
		return
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		fmt.Fprintf(os.Stderr, "bench: %s=%s: want a number of MiB\n", liveEnv, s)
		os.Exit(2)
	}
	for range n << 20 / 64 {
		cells = &cell{next: cells}
	}
}
