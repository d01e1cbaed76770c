package mux

import (
	"syscall"

	"golang.org/x/sys/unix"
)

func writev(fd int, all [][]byte) (int, error) { return unix.Writev(fd, all) }

// yield lets other processes run. The goroutine keeps its P.
func yield() { _, _, _ = syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) }

// giveWay lets other threads run. The runtime may give the goroutine's P to other goroutines
// meanwhile.
func giveWay() { _, _, _ = syscall.Syscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) }
