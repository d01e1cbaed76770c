//go:build !linux

package sock

import (
	"net"
	"syscall"
)

// claim does nothing: no client asks whose process the server is.
func claim(net.Listener) {}

// processOf returns false: there is no portable way to ask.
func processOf(net.Conn) (p Process, ok bool) { return p, false }

// namespaceOf returns 0: there are none.
func namespaceOf(syscall.Conn) uint64 { return 0 }

// Unsent returns 0: it is needed on Linux only, as other systems end a write soon after there is room
// for a part of it.
func Unsent(net.Conn) (n int, ok bool) { return 0, true }
