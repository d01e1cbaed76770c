//go:build !windows

package main

import (
	"syscall"
	"time"
)

// processCPU returns how long the processors have worked for this process.
func processCPU() time.Duration {
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		return 0
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
