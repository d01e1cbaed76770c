package nearcall_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/stats"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/leak"
)

// TestChaosOverTheNetwork is TestChaos with faults of the network, or of the process at
// its other end.
//
// It takes about 6 s. NEARCALL_CHAOS sets another duration:
//
//	NEARCALL_CHAOS=10m go test -race -run TestChaosOverTheNetwork -timeout 0 .
func TestChaosOverTheNetwork(t *testing.T) {
	certs := newCertificates(t)
	scenarios := []scenario{
		{name: "tcp that misbehaves", proxied: true, worker: true},
		{name: "TLS that misbehaves", proxied: true, worker: true,
			opts:     []nearcall.ServerOption{nearcall.Creds(credentials.NewTLS(certs.server(nil)))},
			dialling: []nearcall.DialOption{nearcall.WithTransportCredentials(credentials.NewTLS(certs.client(nil)))},
		},
		// In this scenario calls fail only if the plan makes them fail: calls that a
		// closing connection refuses are retried transparently.
		{name: "tcp, connections of a short life", network: "tcp", worker: true,
			opts: []nearcall.ServerOption{
				nearcall.MaxConcurrentStreams(5),
				nearcall.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: 100 * time.Millisecond, Time: time.Second, Timeout: time.Second}),
				nearcall.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
			},
			dialling: []nearcall.DialOption{nearcall.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: time.Second, PermitWithoutStream: true})},
		},
	}
	for _, network := range networks("unix") {
		scenarios = append(scenarios, scenario{name: network + ", a process that is killed", child: true, worker: true, network: network})
	}
	runAll(t, scenarios, duration(t, "NEARCALL_CHAOS", 6*time.Second))
}

// isNetwork reports whether the scenario belongs to TestChaosOverTheNetwork.
func (s *scenario) isNetwork() bool { return s.proxied || s.child || s.network == "tcp" }

// retries is a stats handler that counts transparent retries.
type retries struct{ n *atomic.Int64 }

func (retries) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (retries) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (retries) HandleConn(context.Context, stats.ConnStats)                       {}

func (r retries) HandleRPC(_ context.Context, s stats.RPCStats) {
	if b, ok := s.(*stats.Begin); ok && b.IsTransparentRetryAttempt {
		r.n.Add(1)
	}
}

// A usage is what a process holds at a point in time.
type usage struct {
	goroutines, descriptors int
	heap                    uint64
}

// slack is how much the heap can grow during a run, in bytes.
const slack = 8 << 20

func measure() usage {
	if lis, err := net.Listen("tcp", "127.0.0.1:0"); err == nil {
		_ = lis.Close() // makes the runtime open its network poller
	}
	return usage{len(leak.Find()), descriptors(), heap()}
}

// check waits until the process holds no more than u.
func (u usage) check(t *testing.T) {
	t.Helper()
	eventually(t, "all goroutines end", func() bool { return len(leak.Find()) <= u.goroutines })
	eventually(t, "all descriptors are closed", func() bool { return descriptors() <= u.descriptors })
	if now := heap(); now > u.heap+slack {
		t.Errorf("%d bytes are in use, and %d were before", now, u.heap)
	}
}

// descriptors returns how many file descriptors the process has open, 0 if unknown.
func descriptors() int {
	if runtime.GOOS != "linux" {
		return 0 // Wine shows the /proc of the system below it
	}
	all, _ := os.ReadDir("/proc/self/fd")
	return len(all)
}

func heap() uint64 {
	runtime.GC()
	runtime.GC() // the second collection empties pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A proxy forwards TCP connections and injects faults.
type proxy struct {
	t       *testing.T
	seed    uint64
	address string // the proxy's own
	server  string
	swallow atomic.Bool // drop all data silently
	calm    bool        // do not delay or split data

	mu        sync.Mutex
	lis       net.Listener
	crossings map[*crossing]struct{}
	count     uint64
	closed    bool
	did       map[string]int
	all       sync.WaitGroup
}

// A crossing is a proxied connection.
type crossing struct {
	client, server *net.TCPConn
	gate           sync.RWMutex // locked to stall the connection
}

func newProxy(t *testing.T, seed uint64) *proxy {
	return &proxy{t: t, seed: seed, crossings: make(map[*crossing]struct{}), did: make(map[string]int)}
}

// forward starts forwarding connections to server. It returns the proxy's target.
func (p *proxy) forward(server net.Addr) string {
	p.server = server.String()
	if err := p.listen("127.0.0.1:0"); err != nil {
		p.t.Fatal(err)
	}
	return "tcp:" + p.address
}

func (p *proxy) listen(address string) error {
	lis, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lis, p.address = lis, lis.Addr().String()
	p.all.Go(func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			p.all.Go(func() { p.cross(conn.(*net.TCPConn)) })
		}
	})
	return nil
}

// cross forwards the connection client.
func (p *proxy) cross(client *net.TCPConn) {
	conn, err := net.Dial("tcp", p.server)
	if err != nil {
		p.t.Errorf("the proxy: %v", err)
		_ = client.Close()
		return
	}
	x := &crossing{client: client, server: conn.(*net.TCPConn)}
	p.mu.Lock()
	p.did["connections"]++
	p.count++
	count := p.count
	p.crossings[x] = struct{}{}
	if p.closed {
		x.reset()
	}
	p.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { p.pump(x, x.client, x.server, rand.New(rand.NewPCG(p.seed, 2*count))) })
	both.Go(func() { p.pump(x, x.server, x.client, rand.New(rand.NewPCG(p.seed, 2*count+1))) })
	both.Wait()
	p.mu.Lock()
	delete(p.crossings, x)
	p.mu.Unlock()
	_ = x.client.Close()
	_ = x.server.Close()
}

// pump forwards one direction of x: delayed, in pieces, and sometimes truncated.
func (p *proxy) pump(x *crossing, from, to *net.TCPConn, r *rand.Rand) {
	buf := make([]byte, 32<<10)
	for ends := false; ; {
		n, err := from.Read(buf[:1+r.IntN(len(buf))])
		switch {
		case err != nil:
			if !p.swallow.Load() {
				_ = to.CloseWrite()
			}
			return
		case p.swallow.Load():
			continue
		case p.calm:
		case r.IntN(4) == 0:
			time.Sleep(time.Duration(r.IntN(20_000)) * time.Microsecond)
		case r.IntN(2000) == 0:
			n, ends = n/2, true
		}
		x.gate.RLock()
		err = p.pass(to, buf[:n], r)
		x.gate.RUnlock()
		if ends { // the rest of n is lost, and the connection is reset
			p.reset(x)
			return
		}
		if err != nil { // to was half-closed or reset
			_, _ = io.Copy(io.Discard, from)
			return
		}
	}
}

func (p *proxy) pass(to *net.TCPConn, b []byte, r *rand.Rand) error {
	if !p.calm && r.IntN(8) == 0 {
		for range 50 {
			n := min(1+r.IntN(7), len(b))
			if _, err := to.Write(b[:n]); err != nil {
				return err
			}
			b = b[n:]
		}
	}
	_, err := to.Write(b)
	return err
}

// upset injects network faults until over is closed.
func (p *proxy) upset(over <-chan struct{}) {
	r := rand.New(rand.NewPCG(p.seed, 0))
	pause := func(most int) bool {
		select {
		case <-over:
			return false
		case <-time.After(time.Duration(r.IntN(most)) * time.Millisecond):
			return true
		}
	}
	for pause(150) {
		x := p.any()
		if x == nil {
			continue
		}
		switch r.IntN(5) {
		case 0, 1:
			p.note("stalls")
			x.gate.Lock()
			pause(100)
			x.gate.Unlock()
		case 2:
			p.reset(x)
		case 3:
			p.note("half-closes")
			if r.IntN(2) == 0 {
				_ = x.client.CloseWrite()
			} else {
				_ = x.server.CloseWrite()
			}
		case 4:
			p.note("refusals")
			p.mu.Lock()
			_ = p.lis.Close()
			p.mu.Unlock()
			p.reset(x)
			pause(150)
			var err error
			for range 100 {
				if err = p.listen(p.address); err == nil {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			if err != nil {
				p.t.Errorf("the proxy listens no more: %v", err)
				return
			}
		}
	}
}

func (p *proxy) note(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.did[what]++
}

// any returns one of the connections, or nil if there is none.
func (p *proxy) any() *crossing {
	p.mu.Lock()
	defer p.mu.Unlock()
	for x := range p.crossings {
		return x
	}
	return nil
}

func (p *proxy) reset(x *crossing) {
	p.note("resets")
	x.reset()
}

func (x *crossing) reset() {
	for _, c := range []*net.TCPConn{x.client, x.server} {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
}

// close resets all connections and waits for the proxy's goroutines.
func (p *proxy) close() {
	p.mu.Lock()
	p.closed = true
	_ = p.lis.Close()
	for x := range p.crossings {
		x.reset()
	}
	p.mu.Unlock()
	p.all.Wait()
}

// Environment variables of child processes.
const (
	serveTarget  = "NEARCALL_TEST_SERVE"   // target to serve on
	serveService = "NEARCALL_TEST_SERVICE" // chaos, echo, or waiting
	callTarget   = "NEARCALL_TEST_CALL"    // target to call
)

// serving is what a child prints, followed by its target, when it serves.
const serving = "serving "

// A process is a child that runs one of this package's tests.
type process struct {
	cmd    *exec.Cmd
	stdin  io.Closer // the child exits when it is closed, also if this process dies
	stderr bytes.Buffer
	target string
}

// spawn starts a child and waits until it reports that it is ready.
func spawn(test string, env ...string) (*process, error) {
	p := &process{cmd: exec.Command(os.Args[0], "-test.run=^"+test+"$", "-test.count=1", "-test.timeout=0")}
	p.cmd.Env = append(os.Environ(), append(env, "GORACE=atexit_sleep_ms=0")...)
	p.cmd.Stderr = &p.stderr
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p.stdin = stdin
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewReader(stdout)
	said := ""
	for {
		line, err := lines.ReadString('\n')
		if target, ok := strings.CutPrefix(line, serving); ok {
			p.target = strings.TrimSpace(target)
			return p, nil
		}
		said += line
		if err != nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
			return nil, fmt.Errorf("the child says %q, and %q", said, &p.stderr)
		}
	}
}

// end sends how to a child and waits until it has exited. Unless it was killed it must
// exit cleanly. On systems without the signal, such as Windows, closing its stdin makes
// it exit.
func (p *process) end(how os.Signal) error {
	if err := p.cmd.Process.Signal(how); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	if how != os.Kill {
		kill := time.AfterFunc(time.Minute, func() { _ = p.cmd.Process.Kill() })
		defer kill.Stop()
	}
	_ = p.stdin.Close()
	err := p.cmd.Wait()
	if how == os.Kill {
		err = nil
	}
	if err != nil || p.stderr.Len() > 0 {
		return fmt.Errorf("a child ended with %v, and says %q", err, &p.stderr)
	}
	return nil
}

// whenTold reports that a child serves target, and returns when the child must exit.
func whenTold(target string) {
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM) // not undone: it can arrive after the end of stdin
	fmt.Println(serving + target)
	eof := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(eof)
	}()
	select {
	case <-told:
	case <-eof: // the parent has exited
	}
}

// TestServeInAProcess is a server that other tests start and kill.
func TestServeInAProcess(t *testing.T) {
	target := os.Getenv(serveTarget)
	if target == "" {
		t.Skip("only in a child process")
	}
	before := measure()
	c := &chaos{
		scenario: scenario{worker: true}, t: t, over: make(chan struct{}), target: target,
		tell: func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) },
	}
	if service := os.Getenv(serveService); service != "" {
		e := echo{}
		if service == "waiting" {
			e, _, _ = waiting()
		}
		srv := serve(t, e)
		lis := listen(t, target)
		start(t, srv, lis)
		whenTold(lis.Target())
		srv.GracefulStop()
		return
	}
	c.up()
	whenTold(c.dialled)
	c.down(c.server.GracefulStop)
	eventually(t, "all handlers return", func() bool { return c.handlers.Load() == 0 })
	eventually(t, "the parent is done", func() bool { return len(leak.Find()) <= before.goroutines })
	before.check(t)
}

// startServer starts the server of a scenario with a child process.
func (c *chaos) startServer() {
	p, err := spawn("TestServeInAProcess", serveTarget+"="+c.target)
	if err != nil {
		c.errorf("%v", err)
		c.end()
	}
	c.process = p
}

func (c *chaos) endServer(how os.Signal) {
	if c.process == nil {
		return
	}
	if err := c.process.end(how); err != nil {
		c.errorf("%v", err)
	}
	c.restarts[how.String()]++
	c.process = nil
}

// stormChild restarts the server until the run ends. Some servers are killed at the
// start of a graceful stop.
func (c *chaos) stormChild() {
	r := rand.New(rand.NewPCG(c.seed, 1000))
	for {
		select {
		case <-c.over:
			return
		case <-time.After(time.Duration(r.IntN(400)) * time.Millisecond):
		}
		switch r.IntN(3) {
		case 0:
			c.endServer(syscall.SIGTERM)
		case 1:
			if c.process != nil {
				_ = c.process.cmd.Process.Signal(syscall.SIGTERM)
				time.Sleep(time.Duration(r.IntN(2000)) * time.Microsecond)
			}
			fallthrough
		default:
			c.endServer(os.Kill)
		}
		c.startServer()
	}
}
