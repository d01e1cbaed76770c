package main

import "github.com/nearcall/nearcall/loop"

// A way is the kind of loop that is called, and the network to it.
type way struct{ network, loop string }

// Networks.
const (
	inProcess = "in process"
	overUnix  = "unix"
)

// The loops, by the options that make them.
const (
	goroutines = "goroutines"
	coroutines = "coroutines"
)

var loopOptions = map[string][]loop.Option{
	goroutines: nil,
	coroutines: {loop.Coroutines()},
}

var ways = []way{{inProcess, goroutines}, {inProcess, coroutines}, {overUnix, goroutines}}
