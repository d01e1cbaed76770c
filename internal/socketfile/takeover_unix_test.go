//go:build unix

package socketfile

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// A server that takes a path over gets the new connections. The other one keeps its socket, and
// leaves the file when it closes it.
func TestAServerTakesAPathOver(t *testing.T) {
	mode := fs.FileMode(0o600)
	for name, o := range map[string]Options{"plain": {TakeOver: true}, "with a mode": {TakeOver: true, Mode: &mode}} {
		t.Run(name, func(t *testing.T) {
			path := newPath(t)
			if err := leave(path + takenSuffix); err != nil { // as a process that was killed does
				t.Fatal(err)
			}
			before := listen(t, path, Options{})
			go signs(before, "before")
			if _, err := Listen(path, Options{}); !errors.Is(err, syscall.EADDRINUSE) {
				t.Errorf("without TakeOver: %v", err)
			}
			after := listen(t, path, o)
			go signs(after, "after")
			if who, err := whoListens(path); who != "after" || err != nil {
				t.Errorf("the path leads to %q, %v", who, err)
			}
			if got := after.Addr().String(); got != path {
				t.Errorf("the address is %s, want %s", got, path)
			}
			if o.Mode != nil {
				wantFile(t, path, mode, os.Getuid(), os.Getgid())
			}
			if err := before.Close(); err != nil {
				t.Error(err)
			}
			if who, err := whoListens(path); who != "after" || err != nil {
				t.Errorf("after Close the path leads to %q, %v", who, err)
			}
			if err := after.Close(); err != nil {
				t.Error(err)
			}
			if files, err := os.ReadDir(path[:len(path)-2]); len(files) > 0 || err != nil {
				t.Errorf("files are left: %v, %v", files, err)
			}
		})
	}
}

// Where no server listens, TakeOver changes nothing.
func TestTakingOverFromNobody(t *testing.T) {
	path := newPath(t)
	for range 2 { // first without a file, then with a stale one
		lis := listen(t, path, Options{TakeOver: true})
		if got := lis.(*listener).UnixListener.Addr().String(); got != path {
			t.Errorf("the socket was made at %s", got)
		}
		_ = lis.Close()
		if err := leave(path); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path, Options{TakeOver: true}); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("where a plain file is: %v", err)
	}
}

// A path that leaves no room for the suffix cannot be taken over, and the error says so.
func TestAPathThatIsTooLongToBeTakenOver(t *testing.T) {
	t.Chdir(t.TempDir())
	path := strings.Repeat("s", len(syscall.RawSockaddrUnix{}.Path)-1)
	lis := listen(t, path, Options{})
	go signs(lis, "before")
	if _, err := Listen(path, Options{TakeOver: true}); err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("the error is %v", err)
	}
	if who, err := whoListens(path); who != "before" || err != nil {
		t.Errorf("the path leads to %q, %v", who, err)
	}
}

// While servers take a path over from each other and close their listeners, every client that
// connects finds one.
func TestAPathThatIsTakenOverAlwaysLeadsToAServer(t *testing.T) {
	path := newPath(t)
	newest := listen(t, path, Options{})
	go signs(newest, "")
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				conn, err := net.Dial("unix", path)
				if errors.Is(err, syscall.EAGAIN) { // the queue is full
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				_ = conn.Close()
			}
		})
	}
	for range 200 {
		before := newest
		newest = listen(t, path, Options{TakeOver: true})
		go signs(newest, "")
		if err := before.Close(); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	clients.Wait()
}

// A listener that is closed while another server takes its path over does not remove that server's
// file.
func TestClosingWhileAServerTakesThePathOver(t *testing.T) {
	path := newPath(t)
	newest := listen(t, path, Options{})
	go signs(newest, "0")
	for n := range 200 {
		before, closed := newest, make(chan error)
		go func() { closed <- before.Close() }()
		newest = listen(t, path, Options{TakeOver: true})
		if err := <-closed; err != nil {
			t.Error(err)
		}
		me := strconv.Itoa(n)
		go signs(newest, me)
		if who, err := whoListens(path); who != me || err != nil {
			t.Fatalf("the path leads to %q, %v, want %s", who, err, me)
		}
	}
}

// Close waits a second for a process that keeps the path's lock, and then leaves the file. The next
// server replaces it.
func TestClosingDoesNotWaitLongForTheLock(t *testing.T) {
	path := newPath(t)
	synctest.Test(t, func(t *testing.T) {
		lis := listen(t, path, Options{})
		unlock, err := lock(path, 0)
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		if err := lis.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took > 2*time.Second {
			t.Errorf("Close has taken %v", took)
		}
		unlock()
	})
	go signs(listen(t, path, Options{}), "next")
	if who, err := whoListens(path); who != "next" || err != nil {
		t.Errorf("the path leads to %q, %v", who, err)
	}
}

// A File that fails passes nothing on, so Close removes the file.
func TestAListenerRemovesItsFileIfFileHasFailed(t *testing.T) {
	path := newPath(t)
	lis := listen(t, path, Options{}).(*listener)
	_ = lis.Bare().Close()
	if f, err := lis.File(); err == nil {
		_ = f.Close()
		t.Error("a closed socket was passed on")
	}
	_ = lis.Close()
	if _, err := os.Lstat(path); err == nil {
		t.Error("the file is left")
	}
}

// The file of a socket that another process inherits stays.
func TestAListenerLeavesTheFileOfAnInheritedSocket(t *testing.T) {
	path := newPath(t)
	lis := listen(t, path, Options{})
	f, err := lis.(*listener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := lis.Close(); err != nil {
		t.Error(err)
	}
	after, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	defer after.Close()
	go signs(after, "after")
	if who, err := whoListens(path); who != "after" || err != nil {
		t.Errorf("the path leads to %q, %v", who, err)
	}
}
