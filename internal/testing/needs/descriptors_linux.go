package needs

import (
	"testing"

	"golang.org/x/sys/unix"
)

// RefusedDescriptors skips a test if the system cannot refuse descriptors that are sent
// over a unix socket. Linux can since version 6.16.
func RefusedDescriptors(t testing.TB) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0); err != nil {
		t.Skip("the system cannot refuse descriptors: ", err)
	}
}
