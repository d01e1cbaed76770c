package main

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime returns how long the CPUs have worked for this process.
func cpuTime() (time.Duration, error) {
	var use unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &use); err != nil {
		return 0, fmt.Errorf("getrusage: %w", err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano()), nil
}

// allowedCPUs returns the numbers of those that this process may use.
func allowedCPUs() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("sched_getaffinity: %w", err)
	}
	var all []int
	for cpu := 0; len(all) < set.Count(); cpu++ {
		if set.IsSet(cpu) {
			all = append(all, cpu)
		}
	}
	return all, nil
}

// confined runs start on a thread with these CPUs alone. A process inherits
// them from the thread that starts it.
func confined(cpus []int, start func() error) error {
	runtime.LockOSThread() // threads that the runtime starts meanwhile do not come from this one
	defer runtime.UnlockOSThread()
	var before, set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("sched_getaffinity: %w", err)
	}
	for _, cpu := range cpus {
		set.Set(cpu)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("sched_setaffinity: %w", err)
	}
	err := start()
	if back := unix.SchedSetaffinity(0, &before); back != nil {
		err = errors.Join(err, fmt.Errorf("sched_setaffinity: %w", back))
	}
	return err
}
