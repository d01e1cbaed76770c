//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package socketfile

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// lockSuffix is appended to a path to name its lock file.
const lockSuffix = ".nearcall-lock"

// lock locks a path against other servers that start to listen there or close, in this process or
// another. It waits for patience at most. The lock is a flock on a file next to the socket. unlock
// removes that file. A lock file that a killed process left behind is reused.
func lock(path string, patience time.Duration) (unlock func(), err error) {
	path += lockSuffix
	for begun := time.Now(); ; time.Sleep(time.Millisecond) {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
		if err != nil {
			return nil, fmt.Errorf("cannot open the lock file; if a server of another user has left it behind, remove it while no server starts: %w", err)
		}
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil && current(f, path) {
			return func() {
				// Remove the file while it is locked: the next holder of the lock sees in
				// current that its file was removed, and opens a new one.
				_ = os.Remove(path)
				_ = f.Close()
			}, nil
		}
		_ = f.Close()
		switch {
		case err == nil || errors.Is(err, syscall.EINTR): // again
		case !errors.Is(err, syscall.EWOULDBLOCK):
			return nil, fmt.Errorf("cannot lock %s: %w", path, err)
		case time.Since(begun) > patience:
			return nil, fmt.Errorf("another process has held the lock %s for more than %v; end that process", path, patience)
		}
	}
}

// current reports whether f is still the file at path. The previous holder of the
// lock may have removed it.
func current(f *os.File, path string) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	now, err := os.Lstat(path)
	return err == nil && os.SameFile(mine, now)
}
