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

	"github.com/nearcall/nearcall/internal/rights"
)

// backlog asks for as many connections that wait to be accepted as the system permits.
const backlog = 1<<16 - 1

// bindWith does what net.Listen does, and gives the file its mode and owner between
// bind, which makes it, and listen, before which nobody can connect. Package net has no
// hook there.
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

// startListening is replaced by a test, which looks at the file at that moment.
var startListening = syscall.Listen

func newSocket() (int, error) {
	syscall.ForkLock.RLock() // so that no process that starts meanwhile inherits it
	defer syscall.ForkLock.RUnlock()
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	return fd, err
}

// listenWith listens on f, a socket that is bound to path, once the file is as o says.
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
	lis, err := net.FileListener(f) // which has a descriptor of its own
	if err != nil {
		return nil, err
	}
	l := lis.(*net.UnixListener)
	rights.Refuse(l)
	if err := startListening(int(f.Fd()), backlog); err != nil {
		_ = l.Close()
		return nil, os.NewSyscallError("listen", err)
	}
	return l, nil
}

// lchmod sets the mode of a file, but does not follow a symbolic link that somebody may
// have put in its place, if the system can do that.
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
