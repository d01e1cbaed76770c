package test

import (
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/child"
)

// For the clients of an inherited socket the server is the process that serves it: shared memory
// depends on that process's user. systemd, which listens first, has another user.
func TestTheServerOfAnInheritedSocketIsWhoServesIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	lis, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	f, err := lis.(*net.UnixListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p, err := child.StartWith([]*os.File{f}, "TestServeAGeneration", restartAt+"=3")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.End(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
	}()
	conn, err := nearcall.NewClient("unix:" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := testpb.NewTestServiceClient(conn).UnaryCall(t.Context(), &testpb.SimpleRequest{}); err != nil {
		t.Fatal(err) // once a call is answered, Serve has begun
	}
	raw, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	to, err := raw.(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := to.Control(func(fd uintptr) {
		server, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			t.Error(err)
		} else if int(server.Pid) != p.Pid() {
			t.Errorf("for a client the server is process %d, want %d, which serves; this is %d", server.Pid, p.Pid(), os.Getpid())
		}
	}); err != nil {
		t.Error(err)
	}
}
