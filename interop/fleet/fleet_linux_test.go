package fleet

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/zap"
)

var quiet = zap.NewNop()

// A fleet is the servers and the etcd of one test.
type fleet struct {
	t       *testing.T
	network network
	servers map[int]*process // by machine
	members map[int]*process
	kinds   map[int]string // of servers
	data    string
}

// A process runs on a machine.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
}

// start starts the fleet. kinds are the servers' in turn.
func start(t *testing.T, kinds ...string) *fleet {
	t.Helper()
	f := &fleet{t: t, network: network{os.Getenv(insideKey)}, servers: make(map[int]*process), members: make(map[int]*process), kinds: make(map[int]string), data: t.TempDir()}
	t.Cleanup(f.end)
	for _, m := range members {
		f.startMember(m)
	}
	for i, m := range servers {
		f.kinds[m] = kinds[i%len(kinds)]
		f.startServer(m)
	}
	return f
}

// run starts a process on a machine.
func (f *fleet) run(machine int, env []string, name string, args ...string) (*process, *bufio.Reader) {
	f.t.Helper()
	p := &process{cmd: f.network.command(machine, name, args...)}
	p.cmd.Env = append(os.Environ(), env...)
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		p.stdin, err = p.cmd.StdinPipe()
	}
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return p, bufio.NewReader(out)
}

func (f *fleet) startMember(m int) {
	f.t.Helper()
	var cluster []string
	for _, other := range members {
		cluster = append(cluster, fmt.Sprintf("e%d=http://%s:2380", other, address(other)))
	}
	client, peer := fmt.Sprintf("http://%s:2379", address(m)), fmt.Sprintf("http://%s:2380", address(m))
	p, out := f.run(m, nil, "etcd", "--name", fmt.Sprint("e", m), "--data-dir", fmt.Sprint(f.data, "/e", m), "--log-level", "error", "--logger", "zap", "--log-outputs", "stdout", "--unsafe-no-fsync",
		"--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
		"--initial-cluster", strings.Join(cluster, ","), "--heartbeat-interval", "50", "--election-timeout", "500")
	go func() { _, _ = io.Copy(io.Discard, out) }()
	f.members[m] = p
}

func (f *fleet) startServer(m int) {
	f.t.Helper()
	p, out := f.run(m, []string{roleKey + "=" + strings.Join(append([]string{f.kinds[m], f.address(m)}, etcd()...), " ")}, os.Args[0])
	if line, err := out.ReadString('\n'); err != nil || line != "serving\n" {
		f.t.Fatalf("server %d says %q, %v", m, line, err)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	f.servers[m] = p
}

// address returns the address of a server.
func (f *fleet) address(m int) string { return net.JoinHostPort(address(m), "50051") }

// etcd returns the addresses of etcd.
func etcd() (all []string) {
	for _, m := range members {
		all = append(all, net.JoinHostPort(address(m), "2379"))
	}
	return all
}

// signal sends a signal to a process. ip has become it.
func (f *fleet) signal(p *process, s syscall.Signal) {
	f.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		f.t.Fatal(err)
	}
}

// kill kills a process and waits for its end.
func (f *fleet) kill(p *process, s syscall.Signal) {
	f.t.Helper()
	f.signal(p, s)
	_ = p.cmd.Wait()
}

func (f *fleet) end() {
	for _, all := range []map[int]*process{f.servers, f.members} {
		for _, p := range all {
			_ = p.cmd.Process.Kill()
		}
		for _, p := range all {
			_ = p.cmd.Wait()
		}
	}
}

// descriptors counts the open files of a process.
func descriptors(t *testing.T, pid int) int {
	t.Helper()
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}
