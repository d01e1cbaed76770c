//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package socketfile

import "time"

// lock locks nothing: this system has no flock.
func lock(string, time.Duration) (unlock func(), err error) { return func() {}, nil }
