package mux

import "syscall"

// yield lets other processes run. The goroutine keeps its processor of the runtime's.
func yield() { _, _, _ = syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) }

// giveWay lets other threads run. Goroutines may have the processor meanwhile.
func giveWay() { _, _, _ = syscall.Syscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) }
