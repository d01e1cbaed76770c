package web

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// unsent returns how many of the bytes written to the socket of conn its peer has not acknowledged.
// It returns unknown if conn hides its socket, as connections of users' listeners may.
func unsent(conn net.Conn) (n int) {
	for {
		below, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		conn = below.NetConn()
	}
	c, ok := conn.(syscall.Conn)
	if !ok {
		return unknown
	}
	raw, err := c.SyscallConn()
	if err == nil {
		inner := raw.Control(func(fd uintptr) {
			n, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
		})
		err = errors.Join(err, inner)
	}
	if err != nil {
		return unknown
	}
	return n
}
