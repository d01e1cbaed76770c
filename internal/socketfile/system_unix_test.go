//go:build unix

package socketfile

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"syscall"
	"testing"
)

// atListen makes bindWith call f after bind and before listen.
func atListen(t *testing.T, f func()) {
	startListening = func(fd, backlog int) error {
		f()
		return syscall.Listen(fd, backlog)
	}
	t.Cleanup(func() { startListening = syscall.Listen })
}

func wantFile(t *testing.T, path string, mode fs.FileMode, uid, gid int) {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Error(err)
		return
	}
	stat := info.Sys().(*syscall.Stat_t)
	if info.Mode() != fs.ModeSocket|mode || int(stat.Uid) != uid || int(stat.Gid) != gid {
		t.Errorf("the file is %v of %d:%d, want %v of %d:%d", info.Mode(), stat.Uid, stat.Gid, fs.ModeSocket|mode, uid, gid)
	}
}

// A socket file has its mode and owner before clients can connect, whatever the umask.
func TestSocketFileModeIsSetBeforeListen(t *testing.T) {
	uid, gid := os.Getuid(), os.Getgid()
	if uid == 0 {
		uid, gid = 12345, 12346
	}
	for _, umask := range []int{0, 0o077, 0o777} {
		for _, mode := range []fs.FileMode{0, 0o600, 0o660, 0o666, 0o777} {
			path := newPath(t)
			looked := false
			atListen(t, func() {
				looked = true
				wantFile(t, path, mode, uid, gid)
				if conn, err := net.Dial("unix", path); err == nil {
					_ = conn.Close()
					t.Error("a client connected before the server listened")
				} else if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.EACCES) {
					t.Error(err)
				}
			})
			if err := leave(path); err != nil { // a stale file with another mode and owner
				t.Fatal(err)
			}
			before := syscall.Umask(umask &^ 0o600) // the lock file can still be opened
			lis, err := Listen(path, Options{Mode: &mode, Owner: &Owner{uid, gid}})
			syscall.Umask(before)
			if err != nil {
				t.Fatal(err)
			}
			if !looked {
				t.Error("the socket was not bound by bindWith")
			}
			wantFile(t, path, mode, uid, gid)
			if err := lis.Close(); err != nil {
				t.Error(err)
			}
			if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("after Close the file is there: %v", err)
			}
		}
	}
}

func TestAListenerOfAFileWithAModeIsLikeAnyOther(t *testing.T) {
	path, mode := newPath(t), fs.FileMode(0o600)
	lis := listen(t, path, Options{Mode: &mode})
	if lis.Addr().String() != path {
		t.Errorf("its address is %v", lis.Addr())
	}
	go signs(lis, "me")
	for range 3 {
		if who, err := whoListens(path); who != "me" || err != nil {
			t.Errorf("the path leads to %q, %v", who, err)
		}
	}
	if _, err := Listen(path, Options{Mode: &mode}); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a second listener: %v", err)
	}
	if who, err := whoListens(path); who != "me" || err != nil {
		t.Errorf("the path leads to %q, %v", who, err)
	}
}

// If an option cannot be applied, Listen fails and leaves no file.
func TestAFileThatCannotBeGivenAwayIsNotLeft(t *testing.T) {
	path, mode := newPath(t), fs.FileMode(0o600)
	refused := errors.New("refused by the test")
	startListening = func(int, int) error { return refused }
	t.Cleanup(func() { startListening = syscall.Listen })
	if _, err := Listen(path, Options{Mode: &mode}); !errors.Is(err, refused) {
		t.Errorf("the error is %v", err)
	}
	if os.Getuid() != 0 {
		if _, err := Listen(path, Options{Owner: &Owner{0, 0}}); !errors.Is(err, syscall.EPERM) {
			t.Errorf("the error is %v", err)
		}
	}
	if files, err := os.ReadDir(path[:len(path)-2]); len(files) > 0 || err != nil {
		t.Errorf("files are left: %v, %v", files, err)
	}
}
