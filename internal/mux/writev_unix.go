//go:build unix && !linux

package mux

import "syscall"

// writev writes the first of all. The writer waits for what is left, and writes
// it in one go.
func writev(fd int, all [][]byte) (int, error) { return syscall.Write(fd, all[0]) }
