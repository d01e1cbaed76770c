//go:build !unix

package sock

import (
	"net"
	"os"
)

// queued accepts nothing: package net has no way to accept without waiting.
func queued(socket) []net.Conn { return nil }

// neverBlock does nothing: no other process can have a copy of the socket.
func neverBlock(socket) {}

// claim does nothing: no client asks whose process the server is.
func claim(net.Listener) {}

// NonBlocking returns f: package net has no files of sockets here.
func NonBlocking(f *os.File) (*os.File, error) { return f, nil }
