package main

import (
	"syscall"
	"time"
	"unsafe"
)

// On Windows the clock of package time advances in steps of half a millisecond or more,
// which is longer than a call takes.
var (
	kernel32    = syscall.NewLazyDLL("kernel32.dll")
	counter     = kernel32.NewProc("QueryPerformanceCounter")
	counterRate = ask(kernel32.NewProc("QueryPerformanceFrequency"))
)

func ask(proc *syscall.LazyProc) int64 {
	var v int64
	_, _, _ = syscall.SyscallN(proc.Addr(), uintptr(unsafe.Pointer(&v)))
	return v
}

func init() { now = countedTime }

// countedTime returns the time since a fixed moment, by the system's performance counter.
func countedTime() time.Duration {
	const second = int64(time.Second)
	ticks := ask(counter)
	return time.Duration(ticks/counterRate*second + ticks%counterRate*second/counterRate)
}
