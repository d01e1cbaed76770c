//go:build !unix

package sock

import "net"

// queued accepts nothing: package net has no way to accept without waiting.
func queued(socket) []net.Conn { return nil }

// neverBlock does nothing: no other process can have a copy of the socket.
func neverBlock(socket) {}
