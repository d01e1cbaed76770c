// Package socketfile listens on unix sockets that have a file. It lets one server at a
// time listen on a path, and replaces a file that a dead server left behind.
package socketfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/nearcall/nearcall/internal/scmrights"
)

// Options set the mode and the owner of the socket file. Without them the file belongs
// to the process's user and group, and the umask determines its mode.
type Options struct {
	Mode     *fs.FileMode
	Owner    *Owner
	TakeOver bool // replace the file of a server that listens there
}

// An Owner is a user and a group, as for [os.Chown]: -1 keeps the process's own.
type Owner struct{ UID, GID int }

// A listener listens on a socket file. Close removes the file. It leaves a file that replaced it,
// or that belongs to a process that got the socket by File.
//
// From when a server listens on a path until the last server closes it, the path leads at
// every moment to a socket that listens: that of the server which took the path last. Three rules
// ensure that:
//
//   - A server holds the path's lock from before it makes the file until it listens. So if another
//     server holds the lock and finds a file that refuses connections, that file is stale.
//   - A file is removed only by a server that holds the lock, and that found the file stale
//     or made it itself. Its own listener closes the socket only after that.
//   - A server that takes over listens on another file first, and renames that to the path while
//     it holds the lock.
type listener struct {
	*net.UnixListener
	name string // as passed to Listen
	path string // absolute: the working directory may change

	mu   sync.Mutex
	mine fs.FileInfo // the file that Close removes, or nil
}

// Bare returns the socket alone.
func (l *listener) Bare() *net.UnixListener { return l.UnixListener }

// Addr implements [net.Listener]. If the listener has taken the path over, the socket's address
// names another file.
func (l *listener) Addr() net.Addr { return &net.UnixAddr{Name: l.name, Net: "unix"} }

// File returns a copy of the socket, for a process that inherits it. The file then belongs to that
// process: Close leaves it.
func (l *listener) File() (*os.File, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f, err := l.UnixListener.File()
	if err == nil {
		l.mine = nil
	}
	return f, err
}

// How long Listen and Close wait for a path's lock. A server holds it for milliseconds, or longer
// if the process is stopped meanwhile. Listen fails without the lock, and Close leaves the file.
const (
	lockForListen = 10 * time.Second
	lockForClose  = time.Second
)

// Listen listens on path, and replaces a stale socket there. Clients cannot connect
// before the file has the mode and owner in o.
func Listen(path string, o Options) (net.Listener, error) {
	unlock, lockErr := lock(path, lockForListen)
	if lockErr == nil {
		defer unlock()
	}
	lis, err := bind(path, o)
	switch {
	case err == nil && lockErr == nil:
	case err == nil:
		_ = lis.Close()
		return nil, lockErr
	case lockErr != nil: // usually both failed for the same reason, which err describes
		if errors.Is(err, syscall.EADDRINUSE) {
			err = fmt.Errorf("there is a file, and without the lock it is unknown whether a server uses it (%w): %w", lockErr, err)
		}
		return nil, err
	default:
		if lis, err = replace(path, o, err); err != nil {
			return nil, err
		}
	}
	l := &listener{UnixListener: lis, name: path}
	if l.path, err = Abs(path); err == nil {
		l.mine, err = os.Lstat(l.path)
	}
	l.SetUnlinkOnClose(err != nil)
	return l, nil
}

// Abs returns the absolute form of path. It keeps each "..", because removing one after a symbolic
// link would name another file.
func Abs(path string) (string, error) {
	switch {
	case filepath.IsAbs(path):
		return path, nil
	case runtime.GOOS == "windows": // there C:s is relative to the current directory of drive C

		return filepath.Abs(path)
	}
	dir, err := os.Getwd()
	return dir + "/" + path, err
}

// bind creates the file and listens. Accepted connections refuse file descriptors from the peer.
func bind(path string, o Options) (*net.UnixListener, error) {
	if o.Mode != nil || o.Owner != nil {
		lis, err := bindWith(path, o)
		if err != nil {
			return nil, &net.OpError{Op: "listen", Net: "unix", Addr: &net.UnixAddr{Name: path, Net: "unix"}, Err: err}
		}
		return lis, nil
	}
	config := net.ListenConfig{Control: scmrights.RefuseFrom}
	lis, err := config.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	return lis.(*net.UnixListener), nil
}

// Close implements [net.Listener].
func (l *listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mine != nil {
		l.removeFileLocked()
		l.mine = nil
	}
	return l.UnixListener.Close()
}

// removeFileLocked removes the file, if it is still the listener's. Without the path's lock a
// server could take the path over at that moment, and lose its file.
func (l *listener) removeFileLocked() {
	unlock, err := lock(l.path, lockForClose)
	if err != nil {
		return // the next server finds a stale file
	}
	defer unlock()
	if now, err := os.Lstat(l.path); err == nil && os.SameFile(l.mine, now) {
		_ = os.Remove(l.path)
	}
}

// replace removes a stale socket at path and listens there. reason is the error of the
// first attempt to listen. The caller holds the path's lock.
func replace(path string, o Options, reason error) (*net.UnixListener, error) {
	before, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist): // its listener has just removed it
		return bind(path, o)
	case err != nil:
		return nil, reason
	case before.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("a file that is no socket is in the way: %w", reason)
	}
	conn, err := net.Dial("unix", path)
	if err == nil {
		_ = conn.Close()
	}
	switch {
	case o.TakeOver && (err == nil || errors.Is(err, syscall.EAGAIN)):
		return takeOver(path, o)
	case err == nil:
		return nil, fmt.Errorf("another server listens there: %w", reason)
	case errors.Is(err, syscall.EAGAIN):
		return nil, fmt.Errorf("another server listens there, and its queue of connections is full: %w", reason)
	case !errors.Is(err, errRefused):
		return nil, fmt.Errorf("a socket is in the way, and whether a server listens there is unknown (%w); remove it if none does: %w", err, reason)
	}
	if now, err := os.Lstat(path); err != nil || !os.SameFile(before, now) {
		return nil, fmt.Errorf("another server has just started there: %w", reason) // it took no lock
	}
	if err := os.Remove(path); err != nil {
		return nil, fmt.Errorf("the socket of a server that is gone is in the way, and cannot be removed: %w", err)
	}
	return bind(path, o)
}

// takenSuffix is appended to a path that a server takes over. The result names the file that
// the server makes first, and then renames to the path.
const takenSuffix = ".nearcall-new"

// takeOver listens on a new file and renames it to path, on which another server listens. The
// caller holds the path's lock.
func takeOver(path string, o Options) (*net.UnixListener, error) {
	made := path + takenSuffix
	if longest := len(syscall.RawSockaddrUnix{}.Path) - 1; len(made) > longest {
		return nil, fmt.Errorf("the path is too long to be taken over, by %d bytes; use a shorter or a relative one", len(made)-longest)
	}
	if left, err := os.Lstat(made); err == nil && left.Mode().Type() == fs.ModeSocket {
		_ = os.Remove(made) // left by a process that was killed here
	}
	lis, err := bind(made, o)
	if err != nil {
		return nil, err
	}
	lis.SetUnlinkOnClose(false)
	if err := os.Rename(made, path); err != nil {
		_ = lis.Close()
		_ = os.Remove(made)
		return nil, fmt.Errorf("cannot replace the file of the server that listens there: %w", err)
	}
	return lis, nil
}
