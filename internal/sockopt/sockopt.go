// Package sockopt asks the system about sockets and their peers.
package sockopt

import (
	"errors"
	"fmt"
	"net"
	"syscall"
)

// A Process is the process at the other end of a unix socket.
type Process struct {
	PID      int
	UID, GID uint32
}

// PeerName returns the address of conn's peer. A client of a unix socket has no address, but the
// system can often tell its process.
func PeerName(conn net.Conn) string {
	local, remote := conn.LocalAddr(), conn.RemoteAddr()
	if local != nil && local.Network() == "unix" {
		if p, ok := ProcessOf(conn); ok {
			return fmt.Sprintf("process %d of user %d at %v", p.PID, p.UID, local)
		}
		return fmt.Sprintf("a client at %v", local)
	}
	return fmt.Sprint(remote)
}

// Control calls f with the descriptor of conn, unless that is closed.
func Control(conn syscall.Conn, f func(fd int)) {
	if raw, err := conn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { f(int(fd)) })
	}
}

// Temporary reports whether an Accept that has failed with err may be called again.
func Temporary(err error) bool {
	var t interface{ Temporary() bool }
	return errors.As(err, &t) && t.Temporary()
}
