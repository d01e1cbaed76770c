package sockopt

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// ProcessOf returns the process at the other end of a unix socket. ok is false for a
// connection that wraps a socket instead of being one.
func ProcessOf(conn net.Conn) (p Process, ok bool) {
	c, isSocket := conn.(syscall.Conn)
	if !isSocket {
		return p, false
	}
	Control(c, func(fd int) {
		cred, err := syscall.GetsockoptUcred(fd, syscall.SOL_SOCKET, syscall.SO_PEERCRED)
		if ok = err == nil; ok {
			p = Process{PID: int(cred.Pid), UID: cred.Uid, GID: cred.Gid}
		}
	})
	return p, ok
}

// NamespaceOf returns the network namespace of a socket, or 0 if the system does not tell: before
// Linux 5.14.
func NamespaceOf(conn syscall.Conn) (namespace uint64) {
	Control(conn, func(fd int) { namespace, _ = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE) })
	return namespace
}

// Unsent returns how many of the bytes written to the socket of conn its peer has not acknowledged.
// ok is false if conn hides its socket, as connections of users' listeners may.
func Unsent(conn net.Conn) (n int, ok bool) {
	for {
		below, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		conn = below.NetConn()
	}
	c, ok := conn.(syscall.Conn)
	if !ok {
		return 0, false
	}
	raw, err := c.SyscallConn()
	if err == nil {
		inner := raw.Control(func(fd uintptr) {
			n, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
		})
		err = errors.Join(err, inner)
	}
	return n, err == nil
}
