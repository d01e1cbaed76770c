//go:build !unix

package mux

import "errors"

// A socket would read and write a socket without waiting. Windows has no such
// reads and writes for the sockets that Go opens: there no caller leads, the
// resident reads for all and the writer writes everything, as over TLS.
type socket struct{}

func newSocket(Conn) *socket { return nil }

func (*socket) TryRead([]byte) (int, error)            { return 0, errors.ErrUnsupported }
func (*socket) TryWrite([]byte, [][]byte) (int, error) { return 0, errors.ErrUnsupported }
