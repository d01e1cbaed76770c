//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package nearcall

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// lockFile is what the name of a path's lock ends with.
const lockFile = ".nearcall-lock"

// lockPatience is how long a lock is waited for. Others hold it for as long as
// it takes to begin to listen.
const lockPatience = 10 * time.Second

// lockPath locks a path for whoever is about to listen there, in this process
// or another. The lock is a file beside it, which unlock removes. One that a
// process left, which was killed meanwhile, is used again.
func lockPath(path string) (unlock func(), err error) {
	path += lockFile
	for begun := time.Now(); ; time.Sleep(time.Millisecond) {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
		if err != nil {
			return nil, fmt.Errorf("the lock beside it cannot be opened; if it is there, perhaps as another user's, remove it while no server starts: %w", err)
		}
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil && current(f, path) {
			return func() {
				_ = os.Remove(path) // before the lock goes: whoever waits for it sees that the file has gone
				_ = f.Close()
			}, nil
		}
		_ = f.Close()
		switch {
		case err == nil || errors.Is(err, syscall.EINTR): // again
		case !errors.Is(err, syscall.EWOULDBLOCK):
			return nil, fmt.Errorf("%s cannot be locked: %w", path, err)
		case time.Since(begun) > lockPatience:
			return nil, fmt.Errorf("another process has held the lock %s for %v; end that process", path, lockPatience)
		}
	}
}

// current reports whether f is what path leads to. Another who had the lock may
// have removed it.
func current(f *os.File, path string) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	now, err := os.Lstat(path)
	return err == nil && os.SameFile(mine, now)
}
