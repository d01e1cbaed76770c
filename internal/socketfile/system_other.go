//go:build !windows

package socketfile

import "syscall"

// errRefused is the error of connecting to a socket that no server listens on.
const errRefused = syscall.ECONNREFUSED

// Supported returns nil: only Windows may lack unix sockets.
func Supported() error { return nil }
