package socketfile

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nearcall/nearcall/internal/testing/needs"
)

// newPath returns an unused path for a socket.
func newPath(t *testing.T) string {
	t.Helper()
	needs.UnixSockets(t)
	return filepath.Join(t.TempDir(), "s")
}

func listen(t *testing.T, path string, o Options) net.Listener {
	t.Helper()
	lis, err := Listen(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lis.Close() })
	return lis
}

// leave leaves a socket file at path, as a killed process does.
func leave(path string) error {
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		return err
	}
	stale.SetUnlinkOnClose(false)
	return stale.Close()
}

// signs writes who to every connection that lis accepts.
func signs(lis net.Listener, who string) {
	for {
		conn, err := lis.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(conn, who)
		_ = conn.Close()
	}
}

// whoListens returns the name that the server at path writes.
func whoListens(path string) (string, error) {
	conn, err := net.Dial("unix", path)
	for errors.Is(err, syscall.EAGAIN) { // others look so often that the queue is full
		runtime.Gosched()
		conn, err = net.Dial("unix", path)
	}
	if err != nil {
		return "", err
	}
	defer conn.Close()
	who, err := io.ReadAll(conn)
	return string(who), err
}

// If several servers start at the same time at a stale socket, one of them gets the
// path and clients reach it. The others fail because the path is in use.
func TestOneOfManyTakesAStaleSocket(t *testing.T) {
	path := newPath(t)
	for range 100 {
		takeStale(t, path)
	}
	if files, err := os.ReadDir(filepath.Dir(path)); len(files) > 0 || err != nil {
		t.Errorf("files are left: %v, %v", files, err)
	}
}

func takeStale(t *testing.T, path string) {
	t.Helper()
	if err := leave(path); err != nil {
		t.Fatal(err)
	}
	const servers = 8
	var won [servers]net.Listener
	var errs [servers]error
	var all sync.WaitGroup
	begin := make(chan struct{})
	for i := range servers {
		all.Go(func() {
			<-begin
			won[i], errs[i] = Listen(path, Options{})
		})
	}
	close(begin)
	all.Wait()
	var winner net.Listener
	for i, lis := range won {
		switch {
		case lis != nil && winner != nil:
			_ = lis.Close()
			t.Error("two servers listen at one path")
		case lis != nil:
			winner = lis
			go signs(lis, "winner")
		case !strings.Contains(errs[i].Error(), "another server listens there"):
			t.Errorf("server %d gets: %v", i, errs[i])
		}
	}
	if winner == nil {
		t.Fatalf("no server listens: %v", errs)
	}
	if who, err := whoListens(path); who != "winner" || err != nil {
		t.Errorf("the path leads to %q, %v", who, err)
	}
	if err := winner.Close(); err != nil {
		t.Error(err)
	}
	if t.Failed() {
		t.FailNow()
	}
}

// takesAt is the environment variable that tells a child process the path to take.
const takesAt = "NEARCALL_TEST_TAKES"

func TestProcessesTakeAStaleSocketInTurns(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there is no lock")
	}
	path := newPath(t)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			cmd := exec.Command(os.Args[0], "-test.run=^TestTakeStaleSockets$", "-test.count=1")
			cmd.Env = append(os.Environ(), takesAt+"="+path)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	all.Wait()
	files, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(files) != 1 || files[0].Name() != filepath.Base(path) {
		t.Errorf("beside the socket there is %v, %v", files, err)
	}
}

// TestTakeStaleSockets competes with other processes for a path. It listens there
// whenever the path is free or stale, and then leaves a stale socket.
func TestTakeStaleSockets(t *testing.T) {
	path := os.Getenv(takesAt)
	if path == "" {
		t.Skip("only in a child process")
	}
	me := strconv.Itoa(os.Getpid())
	won := 0
	for begun := time.Now(); time.Since(begun) < 2*time.Second || won == 0 && time.Since(begun) < time.Minute; {
		lis, err := Listen(path, Options{})
		if err != nil {
			// The second error occurs if another process renamed its file to path, as below,
			// at that moment.
			if !strings.Contains(err.Error(), "another server listens there") && !strings.Contains(err.Error(), "another server has just started there") {
				t.Fatal(err)
			}
			continue
		}
		won++
		go signs(lis, me)
		for range 20 {
			if who, err := whoListens(path); who != me || err != nil {
				t.Fatalf("%s listens, and the path leads to %q, %v", me, who, err)
			}
		}
		// The stale file replaces the listener's, so that Close does not remove it.
		other := path + me
		if err := leave(other); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(other, path); err != nil {
			t.Fatal(err)
		}
		if err := lis.Close(); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Println(me, "listened", won, "times")
}

// A listener removes only its own file. If that was removed and another server has
// listened on the path since, the other server's file stays.
func TestAListenerRemovesItsOwnFileAlone(t *testing.T) {
	path := newPath(t)
	before := listen(t, path, Options{})
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	after := listen(t, path, Options{})
	go signs(after, "after")
	if err := before.Close(); err != nil {
		t.Error(err)
	}
	if who, err := whoListens(path); who != "after" || err != nil {
		t.Errorf("the path leads to %q, %v", who, err)
	}
	if err := after.Close(); err != nil {
		t.Error(err)
	}
	if err := after.Close(); err == nil {
		t.Error("a listener is closed twice without an error")
	}
	if _, err := os.Lstat(path); err == nil {
		t.Error("the file is left")
	}
}

// If the lock file cannot be created, Listen fails. If the socket cannot be created
// either, the error says why.
func TestListeningWhereTheLockCannotBeMade(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there is no lock")
	}
	dir := t.TempDir()
	if _, err := Listen(filepath.Join(dir, "none", "s"), Options{}); err == nil || !strings.Contains(err.Error(), "no such file or directory") || strings.Contains(err.Error(), "lock") {
		t.Errorf("in a directory that does not exist: %v", err)
	}
	path := filepath.Join(dir, "s")
	if err := os.Mkdir(path+".nearcall-lock", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := leave(path); err != nil {
		t.Fatal(err)
	}
	for range 2 { // first with a file that was left behind, then without
		if _, err := Listen(path, Options{}); err == nil || !strings.Contains(err.Error(), "nearcall-lock") || !strings.Contains(err.Error(), "remove it") {
			t.Errorf("without the lock: %v", err)
		}
		_ = os.Remove(path)
	}
}

// errRefused distinguishes a stale socket from one whose server cannot be reached for
// another reason.
func TestWhereNobodyListensConnectionsAreRefused(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = lis.Close()
	if _, err := net.Dial("tcp", lis.Addr().String()); !errors.Is(err, errRefused) {
		t.Errorf("%v, want %v", err, errRefused)
	}
}

// The working directory may change while a listener with a relative path is open.
func TestAListenerRemovesItsFileFromAnywhere(t *testing.T) {
	needs.UnixSockets(t)
	here, there := t.TempDir(), t.TempDir()
	t.Chdir(here)
	lis := listen(t, "s", Options{})
	t.Chdir(there)
	if err := os.WriteFile("s", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := lis.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(here, "s")); !os.IsNotExist(err) {
		t.Errorf("its file is left: %v", err)
	}
	if _, err := os.Lstat("s"); err != nil {
		t.Errorf("another file is gone: %v", err)
	}
}
