//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package nearcall

// lockPath locks nothing: this system has no flock.
func lockPath(string) (unlock func(), err error) { return func() {}, nil }
