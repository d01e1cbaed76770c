//go:build !windows

package nearcall

import "syscall"

// errRefused is the error of connecting where nobody listens.
const errRefused = syscall.ECONNREFUSED

// unixSockets is for Windows, where there may be none.
func unixSockets() error { return nil }
