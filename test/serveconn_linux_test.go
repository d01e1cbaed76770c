package test

import (
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// A socketpair has no name, and becomes shared memory as any other unix socket.
func init() {
	pairs["shm"] = func(t *testing.T) (client, server net.Conn) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		var ends [2]net.Conn
		for i, fd := range fds {
			f := os.NewFile(uintptr(fd), "socketpair")
			defer f.Close()
			if ends[i], err = net.FileConn(f); err != nil {
				t.Fatal(err)
			}
		}
		return ends[0], ends[1]
	}
}
