package test

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/chaos"
	"github.com/nearcall/nearcall/internal/testing/child"
	"github.com/nearcall/nearcall/internal/testing/leak"
)

// A killed server leaves its socket file behind. Another server takes it over.
func TestAServerTakesOverWhatOneThatWasKilledLeft(t *testing.T) {
	for _, network := range overShm {
		t.Run(network, func(t *testing.T) {
			hold(t)
			leavesNoMemory(t)
			target := targetFor(t, network)
			_, path, _ := strings.Cut(target, ":")
			begin := func() *child.Process {
				p, err := child.Start("TestServeInAProcess", serveTarget+"="+target, serveService+"=echo")
				if err != nil {
					t.Fatal(err)
				}
				return p
			}
			server := begin()
			conn, err := nearcall.NewClient(target, impatient())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			client := testpb.NewTestServiceClient(conn)
			wantCode(t, <-invoke(t.Context(), client), codes.OK)
			if err := server.End(os.Kill); err != nil {
				t.Fatal(err)
			}
			// Until the client has noticed, it sends calls to the dead server. They
			// fail and are not retried, because a handler might have seen them.
			noticed, stop := context.WithTimeout(t.Context(), time.Minute)
			defer stop()
			if !conn.WaitForStateChange(noticed, connectivity.Ready) {
				t.Fatal("the client has not noticed that its server is gone")
			}
			stale, err := os.Lstat(path)
			if err != nil || stale.Mode().Type() != fs.ModeSocket {
				t.Fatalf("where the server listened there is %v, %v", stale, err)
			}
			wantUnavailable(t, dial(t, target), "connection refused")

			server = begin()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			var p peer.Peer
			wantCode(t, <-invoke(ctx, client, grpc.WaitForReady(true), grpc.Peer(&p)), codes.OK)
			if p.Addr == nil || p.Addr.Network() != "shm" {
				t.Errorf("calls go over %v", p.Addr)
			}
			if err := server.End(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
			if files, err := os.ReadDir(filepath.Dir(path)); len(files) > 0 || err != nil {
				t.Errorf("files are left: %v, %v", files, err)
			}
		})
	}
}

func TestWhatIsNoSocketIsLeftAlone(t *testing.T) {
	hold(t)
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, err := range map[string]error{
		"file":      os.WriteFile(at("file"), []byte("precious"), 0o600),
		"directory": os.Mkdir(at("directory"), 0o700),
		"pipe":      unix.Mkfifo(at("pipe"), 0o600),
		"link":      os.Symlink("file", at("link")),
		"dangling":  os.Symlink("nothing", at("dangling")),
	} {
		if err != nil {
			t.Fatal(name, err)
		}
	}
	before, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range before {
		for _, scheme := range []string{"shm:", "unix:"} {
			target := scheme + at(f.Name())
			was, err := os.Lstat(at(f.Name()))
			if err != nil {
				t.Fatal(err)
			}
			if lis, err := nearcall.Listen(target); err == nil || !strings.Contains(err.Error(), "no socket") || !strings.Contains(err.Error(), target) {
				t.Errorf("Listen(%q) returns %v, %v", target, lis, err)
			}
			wantUnavailable(t, dial(t, target), at(f.Name())+": connect: ")
			if is, err := os.Lstat(at(f.Name())); err != nil || !os.SameFile(was, is) {
				t.Errorf("%s was %v and is %v, %v", target, was, is, err)
			}
		}
	}
	if b, err := os.ReadFile(at("link")); string(b) != "precious" || err != nil {
		t.Errorf("the file has %q, %v", b, err)
	}
	if after, err := os.ReadDir(dir); len(after) != len(before) || err != nil {
		t.Errorf("there are %v, %v", after, err)
	}
}

// stateIn returns the state of a process or thread from its stat file; "" if it has
// ended.
func stateIn(stat string) string {
	b, _ := os.ReadFile(stat)
	_, after, _ := strings.Cut(string(b), ") ")
	state, _, _ := strings.Cut(after, " ")
	return state
}

// soaks reports whether tests are allowed to take minutes.
func soaks() bool { return stopFor() > 0 }

// stopFor returns how long processes are suspended: a tenth of NEARCALL_SOAK, at most a
// minute; 0 if it is not set.
func stopFor() time.Duration {
	d, _ := time.ParseDuration(os.Getenv("NEARCALL_SOAK"))
	return min(d/10, time.Minute)
}

// TestNothingIsLostWhileAServerIsStopped makes calls of each kind to a server that is
// suspended for a while: longer if NEARCALL_SOAK is set.
func TestNothingIsLostWhileAServerIsStopped(t *testing.T) {
	pause := 200 * time.Millisecond
	if soaks() {
		pause = stopFor()
	}
	for _, network := range overShm {
		t.Run(network, func(t *testing.T) {
			hold(t)
			r := newRemote(t)
			client := dial(t, r.at(network))
			s := overSharedMemory(t, client)
			suspend(t, r.Process)

			const messages, tag = 30, 7
			size := func(i int) int { return chaos.Header + i*i*500 } // 6 MB in all, more than the credit
			heard := make(chan error, 100)
			var all sync.WaitGroup
			all.Go(func() {
				for i := range messages {
					if err := s.Send(&testpb.StreamingOutputCallRequest{Payload: chaos.Message(tag, i, size(i), chaos.Request)}); err != nil {
						t.Error(err)
						break
					}
				}
				_ = s.CloseSend()
			})
			all.Go(func() {
				for i := range messages {
					reply, err := s.Recv()
					if err == nil {
						err = chaos.Check(reply.Payload, tag, i, size(i), chaos.Request)
					}
					if heard <- err; err != nil {
						return
					}
				}
				if _, err := s.Recv(); err != io.EOF {
					t.Errorf("the stream ends with %v", err)
				}
			})
			for i := range messages {
				all.Go(func() {
					reply, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: chaos.Message(tag, i, size(i), chaos.Request)})
					if err == nil {
						err = chaos.Check(reply.Payload, tag, i, size(i), chaos.Request)
					}
					heard <- err
				})
			}
			select {
			case err := <-heard:
				t.Errorf("a server that is stopped answers: %v", err)
			case <-time.After(pause):
			}
			signalChild(t, r.Process, syscall.SIGCONT)
			leak.Within(t, time.Minute, "all calls end", all.Wait)
			for range len(heard) {
				if err := <-heard; err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// overSharedMemory opens a stream over shared memory and waits for one echo.
func overSharedMemory(t *testing.T, client testpb.TestServiceClient) grpc.BidiStreamingClient[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse] {
	t.Helper()
	s, err := client.FullDuplexCall(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&testpb.StreamingOutputCallRequest{Payload: payload(10)}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	if in, _ := peer.FromContext(s.Context()); in == nil || in.Addr.Network() != "shm" {
		t.Fatalf("the stream goes over %v", in)
	}
	return s
}

func TestKeepaliveEndsCallsFromAClientThatIsStopped(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	const every, timeout = time.Second, time.Second // the minimum
	for _, network := range overShm {
		t.Run(network, func(t *testing.T) {
			hold(t)
			r := newRemote(t)
			ended := make(chan error, 1)
			e, running := doomed(ended)
			lis := listen(t, targetFor(t, network))
			start(t, serve(t, e, nearcall.KeepaliveParams(keepalive.ServerParameters{Time: every, Timeout: timeout})), lis)
			told := make(chan error, 1)
			go func() {
				_, err := r.tell(lis.Target())
				told <- err
			}()
			wantShm(t, running, 1)
			suspend(t, r.Process)
			stopped := time.Now()
			wantCancelled(t, ended, 2*every+timeout+10*time.Second)
			if d := time.Since(stopped); d < timeout {
				t.Errorf("the call ends after %v", d)
			}
			signalChild(t, r.Process, syscall.SIGCONT)
			wantCode(t, <-told, codes.Unavailable)
			r.settles(t)
			r.sides(func(t *testing.T, _ string, reach way) { wantUpgrade(t, reach) })
		})
	}
}

// inherited returns the sockets and memory files that a newly started program inherits.
func inherited(t *testing.T) []string {
	t.Helper()
	list := exec.Command("ls", "-l", "/proc/self/fd")
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	var shared []string
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "memfd:") || strings.Contains(line, "socket:") {
			shared = append(shared, line)
		}
	}
	return shared
}

// TestAProgramThatIsStartedInheritsNoConnection starts programs while connections are
// open, being set up and being closed.
func TestAProgramThatIsStartedInheritsNoConnection(t *testing.T) {
	if _, err := exec.LookPath("ls"); err != nil {
		t.Skip(err)
	}
	hold(t)
	leavesNoMemory(t)
	before := len(inherited(t))
	var all sync.WaitGroup
	over := make(chan struct{})
	for _, network := range overShm {
		lis := listen(t, targetFor(t, network))
		start(t, serve(t, mirror()), lis)
		wantNetwork(t, dial(t, lis.Target()), "shm") // stays open
		all.Go(func() {
			for {
				if network, err := reach(t.Context(), lis.Target()); network != "shm" || err != nil {
					t.Errorf("a target is reached over %q, %v", network, err)
				}
				select {
				case <-over:
					return
				default:
				}
			}
		})
	}
	for range 20 {
		if now := inherited(t); len(now) > before {
			t.Errorf("a program inherits %q", now)
		}
	}
	close(over)
	all.Wait()
}

// startHeir makes the remote start a program that outlives it. lives checks that it
// did, and ends the program.
func (r *remote) startHeir(t *testing.T) (lives func(t *testing.T)) {
	t.Helper()
	if _, err := exec.LookPath("cat"); err != nil {
		t.Skip(err)
	}
	said, err := r.tell(heir)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(said)
	if err != nil {
		t.Fatal(err)
	}
	stat := fmt.Sprintf("/proc/%d/stat", pid)
	return func(t *testing.T) {
		t.Helper()
		if state := stateIn(stat); state == "" || state == "Z" {
			t.Error("the program has ended with the process that started it")
		}
		if err := r.End(os.Kill); err != nil { // closes the stdin that the program inherited, which ends it
			t.Error(err)
		}
		leak.Eventually(t, "the program ends", func() bool {
			state := stateIn(stat)
			return state == "" || state == "Z"
		})
	}
}

// kill kills the remote but not its heir.
func (r *remote) kill(t *testing.T) {
	t.Helper()
	r.killed = true
	signalChild(t, r.Process, os.Kill)
}

func TestAProgramThatOutlivesAServerKeepsNoConnection(t *testing.T) {
	for _, network := range overShm {
		t.Run(network, func(t *testing.T) {
			hold(t)
			r := newRemote(t)
			s := overSharedMemory(t, dial(t, r.at(network)))
			lives := r.startHeir(t)
			ended := make(chan error, 1)
			go func() {
				_, err := s.Recv()
				ended <- err
			}()
			r.kill(t)
			select {
			case err := <-ended:
				wantCode(t, err, codes.Unavailable)
			case <-time.After(atOnce):
				t.Error("the call goes on")
			}
			lives(t)
			wantUnavailable(t, dial(t, r.at(network)), "connection refused")
		})
	}
}

func TestAProgramThatOutlivesAClientKeepsNoConnection(t *testing.T) {
	for _, network := range overShm {
		t.Run(network, func(t *testing.T) {
			hold(t)
			r := newRemote(t)
			ended := make(chan error, 1)
			e, running := doomed(ended)
			lis := listen(t, targetFor(t, network))
			start(t, serve(t, e), lis)
			told := make(chan error, 1)
			go func() {
				_, err := r.tell(lis.Target())
				told <- err
			}()
			wantShm(t, running, 1)
			lives := r.startHeir(t)
			r.kill(t)
			wantCancelled(t, ended, atOnce)
			wantCode(t, <-told, codes.Unavailable)
			lives(t)
		})
	}
}
