//go:build !linux

package sock

import "net"

// claim does nothing: no client asks whose process the server is.
func claim(net.Listener) {}

// processOf returns false: there is no portable way to ask.
func processOf(net.Conn) (p Process, ok bool) { return p, false }
