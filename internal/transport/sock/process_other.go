//go:build !linux

package sock

import "net"

// processOf does not know.
func processOf(net.Conn) (p Process, ok bool) { return p, false }
