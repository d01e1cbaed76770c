//go:build !windows

package socketfile

import "syscall"

// errRefused is the error of connecting where nobody listens.
const errRefused = syscall.ECONNREFUSED

// Supported is for Windows, which may have no unix sockets.
func Supported() error { return nil }
