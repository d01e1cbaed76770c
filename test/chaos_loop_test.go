package test

import (
	"runtime"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/chaos"
	"github.com/nearcall/nearcall/internal/testing/looptest"
)

// onLoops returns the scenarios of [TestChaos] whose service runs on a loop. On a baton
// a handler can run on its caller's goroutine; on the other loops Goexit in a handler
// never ends that goroutine.
func onLoops() []chaos.Scenario {
	baton, coroutines, pinned, hosted := &looptest.Baton, &looptest.Coroutines, &looptest.Pinned, &looptest.Hosted
	scenarios := []chaos.Scenario{
		{Name: "inproc, baton", On: baton},
		{Name: "inproc, coroutines", On: coroutines, Worker: true},
		{Name: "inproc, pinned", On: pinned, Worker: true},
		{Name: "inproc, hosted", On: hosted, Worker: true},
		{Name: "inproc, baton, storm", On: baton, Storm: true, Closing: true, Worker: true, Server: []nearcall.ServerOption{nearcall.HandlerPlacement(nearcall.Workers)}},
		{Name: "inproc, coroutines, storm", On: coroutines, Storm: true, Worker: true, Server: []nearcall.ServerOption{nearcall.MaxConcurrentStreams(6)}},
		{Name: "inproc, hosted, storm", On: hosted, Storm: true, Closing: true, Worker: true},
		onNetwork("unix", chaos.Scenario{Name: "unix, baton, storm", On: baton, Storm: true, Closing: true, Worker: true}),
		onNetwork("unix", chaos.Scenario{Name: "unix, coroutines", On: coroutines, Worker: true}),
	}
	if runtime.GOOS == "linux" {
		scenarios = append(scenarios,
			onNetwork("shm", chaos.Scenario{Name: "shm, baton", On: baton, Worker: true}),
			onNetwork("shm", chaos.Scenario{Name: "shm, coroutines, storm", On: coroutines, Storm: true, Closing: true, Worker: true}))
	}
	return scenarios
}
