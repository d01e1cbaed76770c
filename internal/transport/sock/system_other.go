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

func withReady(a askedSocket) net.Conn { return a }
