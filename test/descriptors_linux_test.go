package test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

// withoutConn hides a listener's type, so that the server cannot set socket options.
type withoutConn struct{ net.Listener }

// A server accepts no file descriptor from a peer, on any listener and at any time:
// before the first byte, and during calls.
func TestAServerTakesNoDescriptors(t *testing.T) {
	needs.RefusedDescriptors(t)
	hold(t)
	ordinary := func(t *testing.T) net.Listener {
		lis, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
		if err != nil {
			t.Fatal(err)
		}
		return lis
	}
	for name, test := range map[string]struct {
		listen func(t *testing.T) net.Listener
		late   bool // the option can be set only after a connection was accepted
		opts   []nearcall.ServerOption
	}{
		"unix":              {listen: func(t *testing.T) net.Listener { return listen(t, targetFor(t, "unix+shm")) }},
		"shm":               {listen: func(t *testing.T) net.Listener { return listen(t, targetFor(t, "shm")) }},
		"NoUpgrade":         {listen: func(t *testing.T) net.Listener { return listen(t, targetFor(t, "unix")) }, opts: []nearcall.ServerOption{nearcall.DisableSharedMemory()}},
		"abstract":          {listen: func(t *testing.T) net.Listener { return listen(t, targetFor(t, "unix-abstract")) }},
		"a net.Listener":    {listen: ordinary, late: true},
		"another's wrapper": {listen: func(t *testing.T) net.Listener { return withoutConn{ordinary(t)} }, late: true},
	} {
		t.Run(name, func(t *testing.T) {
			lis := test.listen(t)
			start(t, serve(t, aware(), test.opts...), lis)
			conn, err := net.Dial("unix", lis.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			mine := conn.(*net.UnixConn)
			pass := func() error {
				_, _, err := mine.WriteMsgUnix([]byte("n"), unix.UnixRights(int(os.Stdin.Fd())), nil)
				return err
			}
			if test.late {
				leak.Eventually(t, "a descriptor is refused", func() bool { return errors.Is(pass(), unix.EPERM) })
				return
			}
			for _, says := range []string{"", "near", "call/1\n", "\x0a\x00\x01\x00\x01\x00\x80\x80\x04\x80\x80\x04"} {
				if _, err := mine.Write([]byte(says)); err != nil {
					t.Fatal(err)
				}
				if err := pass(); !errors.Is(err, unix.EPERM) {
					t.Errorf("after %q a descriptor is taken: %v", says, err)
				}
			}
		})
	}
}

// Closing the last descriptor of a lingering socket blocks for a time that the client
// chose. Such a descriptor must not block a thread of the server or delay Stop.
func TestNoDescriptorOfAClientsKeepsAThread(t *testing.T) {
	needs.RefusedDescriptors(t)
	hold(t)
	const n = 32
	lis := listen(t, targetFor(t, "unix"))
	srv := serve(t, aware())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	if _, err := dial(t, lis.Target()).UnaryCall(t.Context(), &testpb.SimpleRequest{}); err != nil {
		t.Fatal(err)
	}
	little := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		return conn.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1) })
	}}
	reader, err := little.Listen(t.Context(), "tcp", "127.0.0.1:0") // never read from
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	before := threads(t)
	for range n {
		conn, err := net.Dial("unix", lis.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fd := lingering(t, reader.Addr().(*net.TCPAddr).Port)
		if _, _, err := conn.(*net.UnixConn).WriteMsgUnix([]byte("nearcall"), unix.UnixRights(fd), nil); err != nil {
			_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{})
		}
		_ = unix.Close(fd)
		_, _ = conn.Write([]byte("/1\n"))
		_ = conn.Close()
	}
	if _, err := dial(t, lis.Target()).UnaryCall(t.Context(), &testpb.SimpleRequest{}); err != nil {
		t.Error(err)
	}
	if now := threads(t); now > before+n/2 {
		t.Errorf("the process has %d threads, and had %d", now, before)
	}
	stopped := make(chan struct{})
	go func() {
		srv.Stop()
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-time.After(10 * time.Second):
		t.Error("Stop does not return")
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// lingering returns a connected socket with linger set whose peer does not read and
// whose buffers are full.
func lingering(t *testing.T, port int) (fd int) {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(err)
	must(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 1))
	must(unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}))
	must(unix.SetNonblock(fd, true))
	for err == nil {
		_, err = unix.Write(fd, make([]byte, 1<<16))
	}
	if !errors.Is(err, unix.EAGAIN) {
		t.Fatal(err)
	}
	must(unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 20}))
	return fd
}

// threads returns the process's number of threads.
func threads(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}
