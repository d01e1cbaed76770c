package nearcall

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"syscall"
)

// A socketFile listens on a unix socket that has a file. Closing it removes the
// file, unless somebody has put another in its place.
//
// Two rules keep servers that start at the same time from removing each
// other's files:
//
//   - Whoever listens holds the path's lock from before the file is made until
//     it is listened on. So a file at which nobody answers, seen by another who
//     holds the lock, was left behind.
//   - A file is removed by whoever holds the lock and found it left behind, or
//     by its listener, which listens until it is gone.
type socketFile struct {
	*net.UnixListener
	path   string
	made   fs.FileInfo
	remove sync.Once
}

// listenFile listens on path. It takes the place of a socket that was left behind
// there.
func listenFile(path string) (net.Listener, error) {
	unlock, lockErr := lockPath(path)
	if lockErr == nil {
		defer unlock()
	}
	lis, err := listen("unix", path)
	switch {
	case err == nil && lockErr == nil:
	case err == nil:
		_ = lis.Close()
		return nil, lockErr
	case lockErr != nil: // mostly for the reason that the socket cannot be made either
		if errors.Is(err, syscall.EADDRINUSE) {
			err = fmt.Errorf("there is a file, and whether it was left behind cannot be told (%w): %w", lockErr, err)
		}
		return nil, err
	default:
		if lis, err = replace(path, err); err != nil {
			return nil, err
		}
	}
	l := &socketFile{UnixListener: lis.(*net.UnixListener), path: path}
	l.made, err = os.Lstat(path)
	l.SetUnlinkOnClose(err != nil)
	return l, nil
}

// Close implements [net.Listener].
func (l *socketFile) Close() error {
	l.remove.Do(func() {
		if now, err := os.Lstat(l.path); err == nil && l.made != nil && os.SameFile(l.made, now) {
			_ = os.Remove(l.path)
		}
	})
	return l.UnixListener.Close()
}

// replace listens in place of a socket that was left behind at path, where
// listening failed for reason. The path is locked.
func replace(path string, reason error) (net.Listener, error) {
	before, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist): // its listener has just removed it
		return listen("unix", path)
	case err != nil:
		return nil, reason
	case before.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("there is a file that is no socket, and it is left alone: %w", reason)
	}
	conn, err := net.Dial("unix", path)
	switch {
	case err == nil:
		_ = conn.Close()
		return nil, fmt.Errorf("another server listens there: %w", reason)
	case errors.Is(err, syscall.EAGAIN):
		return nil, fmt.Errorf("another server listens there, and is behind in accepting: %w", reason)
	case !errors.Is(err, errRefused):
		return nil, fmt.Errorf("there is a socket, and whether anybody listens cannot be told (%w); remove it if nobody does: %w", err, reason)
	}
	if now, err := os.Lstat(path); err != nil || !os.SameFile(before, now) {
		return nil, fmt.Errorf("another server has just come there: %w", reason) // one that knows no lock
	}
	if err := os.Remove(path); err != nil {
		return nil, fmt.Errorf("nobody listens at the socket there, but it cannot be removed: %w", err)
	}
	return listen("unix", path)
}
