//go:build !linux

package sock

import "net"

// processOf returns false: there is no portable way to ask.
func processOf(net.Conn) (p Process, ok bool) { return p, false }
