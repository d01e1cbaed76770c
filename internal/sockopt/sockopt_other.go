//go:build !linux

package sockopt

import (
	"net"
	"syscall"
)

// ProcessOf returns false: there is no portable way to ask.
func ProcessOf(net.Conn) (p Process, ok bool) { return p, false }

// NamespaceOf returns 0: there are none.
func NamespaceOf(syscall.Conn) uint64 { return 0 }

// Unsent returns 0: it is needed on Linux only, as other systems end a write soon after there is room
// for a part of it.
func Unsent(net.Conn) (n int, ok bool) { return 0, true }
