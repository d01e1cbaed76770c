package sock

import (
	"net"
	"syscall"
)

// backlog is the length of the queue of connections to accept. The system reduces it to its limit,
// as it does with that of package net.
const backlog = 1<<16 - 1

// claim makes this process the server of lis for the SO_PEERCRED of clients that connect from now
// on, if lis is a unix socket. Until then it is the process that called listen(2), such as systemd,
// from which this process has inherited lis.
func claim(lis net.Listener) {
	l, ok := bare(lis).(*net.UnixListener)
	if !ok {
		return
	}
	if raw, err := l.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = syscall.Listen(int(fd), backlog) })
	}
}

// processOf returns the process at the other end of a unix socket. ok is false for a
// connection that wraps a socket instead of being one.
func processOf(conn net.Conn) (p Process, ok bool) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return p, false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return p, false
	}
	var cred *syscall.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil || credErr != nil {
		return p, false
	}
	return Process{PID: int(cred.Pid), UID: cred.Uid, GID: cred.Gid}, true
}
