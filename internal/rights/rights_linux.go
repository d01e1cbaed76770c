// Package rights says whether a unix socket takes descriptors from its peer
// (SCM_RIGHTS). It does unless somebody says otherwise, and that is a danger also to
// a program that never looks at them: the system closes what was not looked at,
// within the read that it came with or within the socket's own close. The peer
// chooses what is closed, and can choose a socket whose close waits, for as long as
// it likes, until data that nobody takes was sent (SO_LINGER). Each such read keeps a
// thread of the process.
//
// Linux can refuse them since version 6.16: then the peer's sendmsg fails with
// EPERM. Before that, and on other systems, a process is safe from those only that
// cannot connect.
package rights

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// Refuse lets conn, and what a listener accepts, take no descriptor from now on. It
// does nothing where the system cannot do so, and to what is no unix socket.
func Refuse(conn syscall.Conn) { set(conn, 0) }

// Accept lets conn take descriptors again.
func Accept(conn syscall.Conn) { set(conn, 1) }

func set(conn syscall.Conn, take int) {
	if raw, err := conn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { setOf(int(fd), take) })
	}
}

// RefuseFrom is the Control of a net.ListenConfig or a net.Dialer whose sockets
// take no descriptor from their beginning.
func RefuseFrom(_, _ string, conn syscall.RawConn) error {
	return conn.Control(func(fd uintptr) { setOf(int(fd), 0) })
}

// setOf does nothing where the system says that it does not know the option, or
// that it has none of the kind.
func setOf(fd, take int) {
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS, take)
}
