//go:build unix && !linux

package mux

import "syscall"

// writev writes only all[0]. The rest goes to the writer, which writes it in one call.
func writev(fd int, all [][]byte) (int, error) { return syscall.Write(fd, all[0]) }

// yield does nothing: only Linux's sched_yield is known to let other processes run.
func yield() {}

func giveWay() {}
