// Package socketfile listens on unix sockets that have a file: one server at a time for
// each path, in place of a file that a server left behind.
package socketfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"syscall"

	"github.com/nearcall/nearcall/internal/rights"
)

// Options say what the file is like. Where nothing is said it is as the system makes it:
// the process's own, and its mode by the umask.
type Options struct {
	Mode  *fs.FileMode
	Owner *Owner
}

// IsZero reports whether nothing is said.
func (o Options) IsZero() bool { return o == Options{} }

// An Owner is a user and a group; -1 for the process's own.
type Owner struct{ UID, GID int }

// A listener is that of a socket file. Closing it removes the file, unless somebody
// has put another in its place.
//
// Two rules keep servers that start at the same time from removing each other's files:
//
//   - A server holds the path's lock from before it makes the file until it listens.
//     So if another server that holds the lock sees a file at which nobody answers,
//     that file was left behind.
//   - A file is removed only by a server that holds the lock and found it left behind,
//     or by its own listener, which listens until the file is gone.
type listener struct {
	*net.UnixListener
	path   string
	made   fs.FileInfo
	remove sync.Once
}

// Listen listens on path. It takes the place of a socket that was left behind there.
// Nobody can connect before the file is as o says.
func Listen(path string, o Options) (net.Listener, error) {
	unlock, lockErr := lock(path)
	if lockErr == nil {
		defer unlock()
	}
	lis, err := bind(path, o)
	switch {
	case err == nil && lockErr == nil:
	case err == nil:
		_ = lis.Close()
		return nil, lockErr
	case lockErr != nil: // mostly for the reason that the socket cannot be made either
		if errors.Is(err, syscall.EADDRINUSE) {
			err = fmt.Errorf("there is a file, and without the lock it is unknown whether a server uses it (%w): %w", lockErr, err)
		}
		return nil, err
	default:
		if lis, err = replace(path, o, err); err != nil {
			return nil, err
		}
	}
	l := &listener{UnixListener: lis, path: path}
	l.made, err = os.Lstat(path)
	l.SetUnlinkOnClose(err != nil)
	return l, nil
}

// bind makes the file and listens. Whatever it accepts takes no descriptors.
func bind(path string, o Options) (*net.UnixListener, error) {
	if !o.IsZero() {
		lis, err := bindWith(path, o)
		if err != nil {
			return nil, &net.OpError{Op: "listen", Net: "unix", Addr: &net.UnixAddr{Name: path, Net: "unix"}, Err: err}
		}
		return lis, nil
	}
	config := net.ListenConfig{Control: rights.RefuseFrom}
	lis, err := config.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	return lis.(*net.UnixListener), nil
}

// Close implements [net.Listener].
func (l *listener) Close() error {
	l.remove.Do(func() {
		if now, err := os.Lstat(l.path); err == nil && l.made != nil && os.SameFile(l.made, now) {
			_ = os.Remove(l.path)
		}
	})
	return l.UnixListener.Close()
}

// replace listens in place of a socket that was left behind at path, where
// listening failed for reason. The path is locked.
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
	switch {
	case err == nil:
		_ = conn.Close()
		return nil, fmt.Errorf("another server listens there: %w", reason)
	case errors.Is(err, syscall.EAGAIN):
		return nil, fmt.Errorf("another server listens there, and its queue of connections is full: %w", reason)
	case !errors.Is(err, errRefused):
		return nil, fmt.Errorf("a socket is in the way, and whether a server listens there is unknown (%w); remove it if none does: %w", err, reason)
	}
	if now, err := os.Lstat(path); err != nil || !os.SameFile(before, now) {
		return nil, fmt.Errorf("another server has just started there: %w", reason) // one that knows no lock
	}
	if err := os.Remove(path); err != nil {
		return nil, fmt.Errorf("the socket of a server that is gone is in the way, and cannot be removed: %w", err)
	}
	return bind(path, o)
}
