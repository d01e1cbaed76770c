package test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

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
