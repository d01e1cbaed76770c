package main

import (
	"context"
	"os"
	"os/exec"
)

// keepBusy starts n processes that each use one processor until stop is called.
func keepBusy(ctx context.Context, n int) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	var running []*exec.Cmd
	stop = func() {
		cancel()
		for _, cmd := range running {
			_ = cmd.Wait()
		}
	}
	self, err := os.Executable()
	if err != nil {
		return stop, err
	}
	for range n {
		cmd := exec.CommandContext(ctx, self, "-spin")
		if err := cmd.Start(); err != nil {
			stop()
			return func() {}, err
		}
		running = append(running, cmd)
	}
	return stop, nil
}

// spin uses one processor until the process is killed or its parent has gone.
func spin() {
	parent := os.Getppid()
	for os.Getppid() == parent {
		for range 1 << 24 {
		}
	}
	os.Exit(0)
}
