package sock

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// namespaceOf returns the network namespace of a socket, or 0 if the system does not tell: before
// Linux 5.14.
func namespaceOf(conn syscall.Conn) (namespace uint64) {
	if raw, err := conn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			namespace, _ = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		})
	}
	return namespace
}
