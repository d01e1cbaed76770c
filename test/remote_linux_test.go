package test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/peer"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/chaos"
	"github.com/nearcall/nearcall/internal/testing/child"
	"github.com/nearcall/nearcall/internal/testing/leak"
)

// Environment variables of a remote.
const (
	remoteAt      = "NEARCALL_TEST_REMOTE"  // directory of its sockets
	remoteRefuses = "NEARCALL_TEST_REFUSES" // errno of memfd_create in the remote; empty if it works
)

// What a remote can be told instead of a target to call.
const (
	heir        = "heir"    // to start a program, which lives until this process closes the remote's stdin
	moreThreads = "threads" // to start more threads than it needs, which its runtime keeps
)

// A remote is a child process that serves, and makes calls on request. Tests limit,
// suspend and kill it.
type remote struct {
	*child.Process
	t       *testing.T
	dir     string
	control testpb.TestServiceClient // tells the remote what to call
	killed  bool
	before  holding // what it held at the start
}

// newRemote starts a remote that ends with the test.
func newRemote(t *testing.T, env ...string) *remote {
	t.Helper()
	leavesNoMemory(t)
	r := &remote{t: t, dir: t.TempDir()}
	var err error
	if r.Process, err = child.Start("TestBeRemote", append(env, remoteAt+"="+r.dir)...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !r.killed {
			// After a failed test the remote might still be suspended.
			signalChild(t, r.Process, syscall.SIGCONT)
			// The control connection is closed by now.
			r.holds(t, holding{r.before.descriptors - 1, r.before.mappings})
			if err := r.End(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
		}
		files, err := os.ReadDir(r.dir)
		if err != nil {
			t.Error(err)
		}
		for _, f := range files {
			if !r.killed || f.Type() != fs.ModeSocket {
				t.Errorf("a file is left: %v", f)
			}
		}
	})
	r.control = dial(t, r.Target, nearcall.WithDisableSharedMemory())
	_, err = r.control.EmptyCall(t.Context(), &testpb.Empty{})
	wantCode(t, err, codes.Unimplemented)
	if r.before, err = r.held(); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestBeRemote is a process that other tests limit, suspend and kill.
func TestBeRemote(t *testing.T) {
	dir := os.Getenv(remoteAt)
	if dir == "" {
		t.Skip("only in a child process")
	}
	if s := os.Getenv(remoteRefuses); s != "" {
		errno, err := strconv.Atoi(s)
		if err == nil {
			err = refuse(unix.SYS_MEMFD_CREATE, syscall.Errno(errno))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, network := range overShm {
		start(t, serve(t, mirror()), listen(t, remoteTarget(dir, network)))
	}
	lis := listen(t, "unix:"+filepath.Join(dir, "control"))
	start(t, serve(t, echo{unary: obey}, nearcall.DisableSharedMemory()), lis)
	child.Serve(lis.Target())
}

func remoteTarget(dir, network string) string {
	scheme, _, _ := strings.Cut(network, "+")
	return scheme + ":" + filepath.Join(dir, scheme)
}

// at returns the remote's target on network.
func (r *remote) at(network string) string { return remoteTarget(r.dir, network) }

// mirror is a service whose unary calls echo their payload and return the network of
// the handler's peer.
func mirror() echo {
	return echo{unary: func(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		p, _ := peer.FromContext(ctx)
		return &testpb.SimpleResponse{Payload: in.Payload, Username: p.Addr.Network()}, nil
	}}
}

// reach makes a call with a large message to a mirror, over a new connection. It
// returns the network that was used.
func reach(ctx context.Context, target string) (network string, err error) {
	conn, err := nearcall.NewClient(target)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	const size = 100_000
	var server peer.Peer
	reply, err := testpb.NewTestServiceClient(conn).UnaryCall(ctx, &testpb.SimpleRequest{Payload: chaos.Message(1, 0, size, chaos.Request)}, grpc.Peer(&server))
	if err != nil {
		return "", err
	}
	if network = server.Addr.Network(); network != reply.Username {
		return "", fmt.Errorf("for the server the call comes over %s, and for the client it goes over %s", reply.Username, network)
	}
	return network, chaos.Check(reply.Payload, 1, 0, size, chaos.Request)
}

// obey handles a request of tell.
func obey(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	switch what := string(in.Payload.Body); what {
	case heir:
	case moreThreads:
		startThreads(32)
		return &testpb.SimpleResponse{}, nil
	default:
		network, err := reach(ctx, what)
		return &testpb.SimpleResponse{Username: network}, err
	}
	program := exec.Command("cat")
	program.Stdin = os.Stdin
	if err := program.Start(); err != nil {
		return nil, err
	}
	return &testpb.SimpleResponse{Username: strconv.Itoa(program.Process.Pid)}, nil
}

// startThreads makes the runtime have n threads at least.
func startThreads(n int) {
	var all sync.WaitGroup
	var running atomic.Int32
	ready := make(chan struct{})
	for range n {
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			if running.Add(1) == int32(n) {
				close(ready)
			}
			<-ready
		})
	}
	all.Wait()
}

// tell makes the remote call a target, or do one of the other things.
func (r *remote) tell(what string) (string, error) {
	ctx, cancel := context.WithTimeout(r.t.Context(), 2*time.Minute)
	defer cancel()
	reply, err := r.control.UnaryCall(ctx, &testpb.SimpleRequest{Payload: &testpb.Payload{Body: []byte(what)}})
	return reply.GetUsername(), err
}

// A holding counts the resources that connections are made of.
type holding struct{ descriptors, mappings int }

func (r *remote) held() (holding, error) {
	dir := fmt.Sprintf("/proc/%d/", r.Pid())
	files, err := os.ReadDir(dir + "fd")
	maps, err2 := os.ReadFile(dir + "maps")
	return holding{len(files), strings.Count(string(maps), "memfd:nearcall")}, errors.Join(err, err2)
}

// open returns the remote's open descriptors.
func (r *remote) open(t *testing.T) map[int]bool {
	t.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", r.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	open := make(map[int]bool)
	for _, f := range all {
		fd, _ := strconv.Atoi(f.Name())
		open[fd] = true
	}
	return open
}

// proc returns the contents of a file in the remote's /proc directory.
func (r *remote) proc(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", r.Pid(), file))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// settles waits until the remote has released the resources of its connections.
func (r *remote) settles(t *testing.T) {
	t.Helper()
	r.holds(t, r.before)
}

// holds waits until the remote holds exactly want.
func (r *remote) holds(t *testing.T, want holding) {
	t.Helper()
	var now holding
	var err error
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for begin := time.Now(); time.Since(begin) < 10*time.Second; <-tick.C {
		if now, err = r.held(); err == nil && now == want {
			return
		}
	}
	t.Errorf("the remote holds %+v, and should hold %+v (%v)", now, want, err)
	r.before = now // report a leak only once
}

// limit sets a resource limit of the remote. lift restores it.
func (r *remote) limit(t *testing.T, resource int, most uint64) (lift func()) {
	t.Helper()
	pid := r.Pid()
	var before unix.Rlimit
	if err := unix.Prlimit(pid, resource, nil, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(pid, resource, &unix.Rlimit{Cur: most, Max: before.Max}, nil); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := unix.Prlimit(pid, resource, &before, nil); err != nil {
			t.Error(err)
		}
	}
}

// limitDescriptors limits the remote to n more descriptors.
func (r *remote) limitDescriptors(t *testing.T, n int) (lift func()) {
	t.Helper()
	open := r.open(t)
	most := 0
	for ; n > 0; most++ {
		if !open[most] {
			n--
		}
	}
	return r.limit(t, unix.RLIMIT_NOFILE, uint64(most))
}

// limitMemory limits the remote to n more bytes of address space. The remote starts no thread for as
// long: a thread's stack takes 8 MiB of it, and C's malloc 64 MiB for each thread, and a runtime that
// gets no thread ends the process.
func (r *remote) limitMemory(t *testing.T, n int) (lift func()) {
	t.Helper()
	if _, err := r.tell(moreThreads); err != nil {
		t.Fatal(err)
	}
	pages, _, _ := strings.Cut(string(r.proc(t, "statm")), " ")
	has, err := strconv.Atoi(pages)
	if err != nil {
		t.Fatal(err)
	}
	return r.limit(t, unix.RLIMIT_AS, uint64(has*os.Getpagesize()+n))
}

// refuse makes all system calls with the number call fail with errno, in this process.
func refuse(call uint32, errno syscall.Errno) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the system call's number
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	thread, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	if e != 0 || thread != 0 {
		return fmt.Errorf("seccomp: %w, thread %d", e, thread)
	}
	return nil
}

// leavesNoMemory checks at the end of the test that no shared memory is left, neither
// mapped nor in /dev/shm.
func leavesNoMemory(t *testing.T) {
	t.Helper()
	names := func() map[string]bool {
		files, _ := os.ReadDir("/dev/shm")
		all := make(map[string]bool)
		for _, f := range files {
			all[f.Name()] = true
		}
		return all
	}
	mapped, named := mappings(t), names()
	t.Cleanup(func() {
		leak.Finally(t, "all memory is given back", func() bool {
			_ = leak.Heap() // the collector frees messages that were not received
			return mappings(t) <= mapped
		})
		leak.Finally(t, "no file is left in /dev/shm", func() bool { // other processes can have files there for a while
			for name := range names() {
				if !named[name] {
					return false
				}
			}
			return true
		})
	})
}

// A way makes a call to a target of network, and returns the network that was used.
type way func(t *testing.T, network string) (over string, err error)

// sides runs f twice: with calls to the remote and with calls from it.
func (r *remote) sides(f func(t *testing.T, side string, reach way)) {
	t := r.t
	own := make(map[string]string)
	for _, network := range overShm {
		lis := listen(t, targetFor(t, network))
		start(t, serve(t, mirror()), lis)
		own[network] = lis.Target()
	}
	for side, reach := range map[string]func(network string) (string, error){
		"server": func(network string) (string, error) { return reach(t.Context(), r.at(network)) },
		"client": func(network string) (string, error) { return r.tell(own[network]) },
	} {
		t.Run(side, func(t *testing.T) {
			f(t, side, func(t *testing.T, network string) (string, error) {
				defer r.settles(t)
				return reach(network)
			})
		})
	}
}

// fullQueue listens on path, and returns when its queue of connections is full. leave closes those
// that are in it.
func fullQueue(t *testing.T, path string) (lis net.Listener, leave func()) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	if lis, err = net.FileListener(f); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lis.Close() })
	var queued []net.Conn
	for {
		conn, err := net.Dial("unix", path)
		if errors.Is(err, unix.EAGAIN) {
			return lis, func() {
				for _, conn := range queued {
					_ = conn.Close()
				}
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		queued = append(queued, conn)
	}
}

// Where the server's queue of connections is full, clients wait for it, as they would over TCP.
func TestClientsWaitForAFullQueue(t *testing.T) {
	for _, network := range append(networks("unix"), "fallback") {
		t.Run(network, func(t *testing.T) {
			hold(t)
			path := filepath.Join(t.TempDir(), "s")
			lis, leave := fullQueue(t, path)
			target, opts := "unix:"+path, over(network)
			switch network {
			case "shm":
				target = "shm:" + path
			}
			hasty := nearcall.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: 20 * time.Millisecond, Backoff: backoff.Config{MaxDelay: time.Millisecond}})
			client := dial(t, target, append(opts, hasty)...)
			leak.Eventually(t, "the connect timeout ends the wait", func() bool {
				err := <-invoke(t.Context(), client)
				wantCode(t, err, codes.Unavailable)
				return strings.Contains(fmt.Sprint(err), "queue of connections is full")
			})
			var calls []<-chan error
			for range 10 {
				calls = append(calls, invoke(t.Context(), dial(t, target, opts...)))
			}
			if network == "fallback" {
				startGRPC(t, lis, echo{})
			} else {
				start(t, serve(t, echo{}), lis)
			}
			for _, call := range calls {
				wantCode(t, <-call, codes.OK)
			}
			leave()
		})
	}
}
