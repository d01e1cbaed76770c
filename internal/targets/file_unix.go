//go:build unix

package targets

import (
	"os"

	"golang.org/x/sys/unix"
)

// nonBlocking returns a file for f's descriptor whose Fd, which exec.Cmd calls, leaves the socket
// in non-blocking mode. Fd of a file from package net makes the socket block, and so the
// listener: its Accept could no longer be interrupted. It closes f.
func nonBlocking(f *os.File) (*os.File, error) {
	defer f.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd, failed := -1, error(nil)
	err = raw.Control(func(own uintptr) { fd, failed = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) })
	if err == nil {
		err = failed
	}
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
