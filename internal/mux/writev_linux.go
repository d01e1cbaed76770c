package mux

import "golang.org/x/sys/unix"

func writev(fd int, all [][]byte) (int, error) { return unix.Writev(fd, all) }
