//go:build !unix

package mux

import "errors"

// A socket would read and write a socket without waiting, where the system lets it.
type socket struct{}

func newSocket(Conn) *socket { return nil }

func (*socket) TryRead([]byte) (int, error)            { return 0, errors.ErrUnsupported }
func (*socket) TryWrite([]byte, [][]byte) (int, error) { return 0, errors.ErrUnsupported }
