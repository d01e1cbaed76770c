//go:build !unix

package mux

import "errors"

// A socket takes the place of the type that implements Prompt on other systems. On this one it is
// never made. Windows has no nonblocking reads and writes for the sockets that Go opens, so there
// callers do not read: as over TLS, the read loop reads everything and the writer writes
// everything.
type socket struct{}

func newSocket(Conn) *socket { return nil }

func (*socket) TryRead([]byte) (int, error)            { return 0, errors.ErrUnsupported }
func (*socket) TryWrite([]byte, [][]byte) (int, error) { return 0, errors.ErrUnsupported }
