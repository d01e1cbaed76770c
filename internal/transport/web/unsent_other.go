//go:build !linux

package web

import "net"

// unsent is needed on Linux only: other systems end a write soon after there is room for a part
// of it.
func unsent(net.Conn) int { return 0 }
