//go:build unix

package socketfile

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nearcall/nearcall/internal/scmrights"
)

// errRefused is the error of connecting to a socket that no server listens on.
const errRefused = syscall.ECONNREFUSED

// Supported returns nil: only Windows may lack unix sockets.
func Supported() error { return nil }

// backlog is the length of the queue of connections to accept. The system reduces it to its limit.
const backlog = 1<<16 - 1

// bindWith does the same as net.Listen, but sets the mode and the owner of the file
// between bind, which creates it, and listen. Clients cannot connect before listen.
// Package net has no hook at that point.
func bindWith(path string, o Options) (*net.UnixListener, error) {
	fd, err := newSocket()
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}); err != nil {
		return nil, os.NewSyscallError("bind", err)
	}
	lis, err := listenWith(f, path, o)
	if err != nil {
		_ = os.Remove(path)
		return nil, err
	}
	return lis, nil
}

// startListening is a variable so that a test can inspect the file just before listen.
var startListening = syscall.Listen

func newSocket() (int, error) {
	syscall.ForkLock.RLock() // no child process must inherit fd before CloseOnExec
	defer syscall.ForkLock.RUnlock()
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	return fd, err
}

// listenWith applies o to the file at path and then listens on f, the socket that is bound to it.
func listenWith(f *os.File, path string, o Options) (*net.UnixListener, error) {
	if o.Owner != nil {
		if err := os.Lchown(path, o.Owner.UID, o.Owner.GID); err != nil {
			return nil, fmt.Errorf("cannot set the owner of the socket file: %w", err)
		}
	}
	if o.Mode != nil {
		if err := lchmod(path, *o.Mode); err != nil {
			return nil, fmt.Errorf("cannot set the mode of the socket file: %w", err)
		}
	}
	lis, err := net.FileListener(f) // duplicates the descriptor
	if err != nil {
		return nil, err
	}
	l := lis.(*net.UnixListener)
	scmrights.Refuse(l)
	if err := startListening(int(f.Fd()), backlog); err != nil {
		_ = l.Close()
		return nil, os.NewSyscallError("listen", err)
	}
	return l, nil
}

// lchmod sets the mode of a file. If the system supports it, lchmod does not follow a
// symbolic link: another user may have replaced the file with one.
func lchmod(path string, mode fs.FileMode) error {
	err := unix.Fchmodat(unix.AT_FDCWD, path, uint32(mode.Perm()), unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return os.Chmod(path, mode.Perm())
	}
	if err != nil {
		return &fs.PathError{Op: "chmod", Path: path, Err: err}
	}
	return nil
}
