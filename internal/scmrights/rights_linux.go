// Package scmrights sets whether a unix socket accepts descriptors from its peer (SCM_RIGHTS). By
// default it does, which endangers even a program that ignores them. The system itself closes
// descriptors that the program does not receive, either in the read with which they arrive or when
// the socket is closed. The peer chooses these descriptors. It can send a socket whose close
// blocks until its data is sent (SO_LINGER), and delay that for as long as it likes. Each such
// read blocks a thread of the process.
//
// Since version 6.16 Linux can refuse descriptors: the peer's sendmsg then fails with EPERM. On
// older versions and on other systems, a process is safe only from peers that cannot connect.
package scmrights

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// Refuse makes conn, or the sockets that the listener conn accepts, refuse descriptors. It
// does nothing if the system cannot do so, or if conn is not a unix socket.
func Refuse(conn syscall.Conn) { set(conn, 0) }

// Accept makes conn accept descriptors again.
func Accept(conn syscall.Conn) { set(conn, 1) }

func set(conn syscall.Conn, take int) {
	if raw, err := conn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { setOf(int(fd), take) })
	}
}

// RefuseFrom is the Control of a net.ListenConfig or a net.Dialer whose sockets refuse
// descriptors from the start.
func RefuseFrom(_, _ string, conn syscall.RawConn) error {
	return conn.Control(func(fd uintptr) { setOf(int(fd), 0) })
}

// setOf ignores errors: the system might not know the option, or not have it for this kind
// of socket.
func setOf(fd, take int) {
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS, take)
}
