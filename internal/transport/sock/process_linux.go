package sock

import (
	"net"
	"syscall"
)

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
