package needs

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TUN skips a test if it cannot make a network namespace with a TUN device, for which the
// machine must offer /dev/net/tun, and the process must be root there.
func TUN(t testing.TB) {
	t.Helper()
	if err := tun(); err != nil {
		t.Skip("no network namespace with a TUN device: ", err)
	}
}

func tun() error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends, and the namespace with it
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			r, err := unix.NewIfreq("needs")
			if err != nil {
				return err
			}
			r.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
			return unix.IoctlIfreq(fd, unix.TUNSETIFF, r)
		}()
	}()
	return <-done
}
