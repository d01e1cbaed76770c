package sock

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// backlog is the length of the queue of connections to accept. The system reduces it to its limit,
// as it does with that of package net.
const backlog = 1<<16 - 1

// If lis is a unix socket, claim makes this process the server that the SO_PEERCRED of later
// clients reports. Before, that is the process that called listen(2), such as systemd, from which
// this process has inherited lis.
func claim(lis net.Listener) {
	if l, ok := bare(lis).(*net.UnixListener); ok {
		control(l, func(fd int) { _ = syscall.Listen(fd, backlog) })
	}
}

// processOf returns the process at the other end of a unix socket. ok is false for a
// connection that wraps a socket instead of being one.
func processOf(conn net.Conn) (p Process, ok bool) {
	c, isSocket := conn.(syscall.Conn)
	if !isSocket {
		return p, false
	}
	control(c, func(fd int) {
		cred, err := syscall.GetsockoptUcred(fd, syscall.SOL_SOCKET, syscall.SO_PEERCRED)
		if ok = err == nil; ok {
			p = Process{PID: int(cred.Pid), UID: cred.Uid, GID: cred.Gid}
		}
	})
	return p, ok
}

// namespaceOf returns the network namespace of a socket, or 0 if the system does not tell: before
// Linux 5.14.
func namespaceOf(conn syscall.Conn) (namespace uint64) {
	control(conn, func(fd int) { namespace, _ = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE) })
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
