//go:build !unix

package sock

import "net"

// queued accepts nothing: package net has no way to accept without waiting.
func queued(socket) []net.Conn { return nil }
