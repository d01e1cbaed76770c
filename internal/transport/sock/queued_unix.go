//go:build unix

package sock

import (
	"net"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nearcall/nearcall/internal/sockopt"
)

// maxQueued bounds how many connections queued accepts, because clients can make more meanwhile.
const maxQueued = 1 << 16

// queued accepts the connections that wait in the queue of lis, which may be nil. If nothing
// accepts them, the system closes them together with lis.
func queued(lis socket) (all []net.Conn) {
	if lis == nil {
		return nil
	}
	neverBlock(lis)
	sockopt.Control(lis, func(fd int) {
		for len(all) < maxQueued {
			conn, err := accept(fd)
			switch err {
			case nil:
				all = append(all, conn)
			case syscall.EINTR, syscall.ECONNABORTED:
			default: // EAGAIN if there is no more
				return
			}
		}
	})
	return all
}

// neverBlock puts lis, which may be nil, back into non-blocking mode. Copies in child processes
// share the mode, and exec.Cmd makes files of package net block. Accept would then wait in the
// system, and neither a deadline nor Close would end it.
func neverBlock(lis socket) {
	if lis != nil {
		sockopt.Control(lis, func(fd int) { _ = syscall.SetNonblock(fd, true) })
	}
}

// backlog is the length of the queue of connections to accept. The system reduces it to its limit,
// as it does with that of package net.
const backlog = 1<<16 - 1

// If lis is a unix socket, claim makes this process the server that clients of Linux see: its
// SO_PEERCRED names the process that has called listen(2) last. Before, that can be another, such as
// systemd, from which this process has inherited lis.
func claim(lis net.Listener) {
	if l, ok := bare(lis).(*net.UnixListener); ok && runtime.GOOS == "linux" {
		sockopt.Control(l, func(fd int) { _ = syscall.Listen(fd, backlog) })
	}
}

// NonBlocking returns a file for f's descriptor whose Fd, which exec.Cmd calls, leaves the socket
// in non-blocking mode. Fd of a file from package net makes the socket block, and so the
// listener: its Accept could no longer be interrupted. It closes f.
func NonBlocking(f *os.File) (*os.File, error) {
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

// accept accepts a connection of a listener that does not block.
func accept(lis int) (net.Conn, error) {
	syscall.ForkLock.RLock() // no child process must inherit fd before CloseOnExec
	fd, _, err := syscall.Accept(lis)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "")
	defer f.Close()
	return net.FileConn(f) // duplicates the descriptor
}
