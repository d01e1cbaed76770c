package nearcall_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/hook"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/looptest"
	"github.com/nearcall/nearcall/internal/transport/hostile"
)

// TestChaos makes random calls of all kinds from several goroutines, while they are
// cancelled, while handlers fail and panic, and while servers stop, sessions break and
// connections close. Every call must end with the answer to its own request, or with an
// error that its plan explains. In the end no handler runs and no goroutine is left.
// Handlers on a loop also keep a book without a lock, whose totals must match.
//
// It takes about 4 s, divided among the scenarios. NEARCALL_SOAK sets another duration:
//
//	NEARCALL_SOAK=10m go test -race -run TestChaos -timeout 0 .
func TestChaos(t *testing.T) {
	lasts := duration(t, "NEARCALL_SOAK", 4*time.Second)
	scenarios := []scenario{
		{name: "inproc"},
		{name: "inproc, inline and limited", opts: []nearcall.ServerOption{nearcall.InlineHandlers(), nearcall.MaxConcurrentStreams(3)}},
		{name: "inproc, storm", storm: true, worker: true, opts: []nearcall.ServerOption{nearcall.WorkerHandlers(), nearcall.MaxConcurrentStreams(6)}},
		{name: "inproc, closing", storm: true, closing: true},
		{name: "hostile", worker: true, hostile: &hostile.Options{Delay: 20 * time.Microsecond}},
		{name: "hostile, storm", storm: true, worker: true,
			hostile: &hostile.Options{Delay: 20 * time.Microsecond, HangUp: 0.0005, Window: 2000, MaxFragment: 500}},
	}
	for _, network := range networks("unix") {
		scenarios = append(scenarios,
			scenario{name: network, worker: true, network: network},
			scenario{name: network + ", storm", storm: true, closing: true, worker: true, network: network})
	}
	runAll(t, append(scenarios, onLoops()...), lasts)
}

// duration returns how long a run takes; the environment variable overrides lasts.
func duration(t *testing.T, variable string, lasts time.Duration) time.Duration {
	t.Helper()
	if testing.Short() {
		lasts /= 6
	}
	if s := os.Getenv(variable); s != "" {
		var err error
		if lasts, err = time.ParseDuration(s); err != nil {
			t.Fatalf("%s=%q: %v", variable, s, err)
		}
	}
	return lasts
}

func runAll(t *testing.T, scenarios []scenario, lasts time.Duration) {
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) { s.run(t, lasts/time.Duration(len(scenarios))) })
	}
}

// A scenario says how calls are made and which faults are injected.
type scenario struct {
	name     string
	hostile  *hostile.Options // replaces inproc unless nil
	network  string           // see targetFor; replaces inproc unless empty
	proxied  bool             // TCP through a proxy replaces inproc
	child    bool             // the server is a child process
	on       *looptest.Kind   // the loop of the service, if any
	opts     []nearcall.ServerOption
	dialling []nearcall.DialOption
	worker   bool // no handler runs on its caller's goroutine
	storm    bool // servers are restarted
	closing  bool // connections are closed as well
}

const (
	callers = 100
	maxRecv = 64 << 10 // the server's MaxRecvMsgSize, in bytes
)

func (s scenario) run(t *testing.T, lasts time.Duration) {
	before := measure()
	c := &chaos{scenario: s, t: t, over: make(chan struct{}), seed: rand.Uint64(), target: "inproc:chaos"}
	t.Logf("seed %d", c.seed)
	switch {
	case s.network != "":
		c.target = targetFor(t, s.network)
	case s.proxied:
		c.proxy = newProxy(t, c.seed)
		c.target = "tcp:127.0.0.1:0"
	}
	if s.child {
		c.restarts = make(map[string]int)
	}
	c.up()
	c.dial()
	var all, upset sync.WaitGroup
	for i := range uint64(callers) {
		all.Go(func() {
			r := rand.New(rand.NewPCG(c.seed, i))
			for !c.isOver() {
				c.call(r)
			}
		})
	}
	if s.storm {
		upset.Go(c.storm)
	}
	if c.proxy != nil {
		upset.Go(func() { c.proxy.upset(c.over) })
	}
	if s.child {
		upset.Go(c.stormChild)
	}
	time.AfterFunc(lasts, func() { c.endSoon(lasts, time.Now().Add(20*time.Second)) })
	within(t, lasts+time.Minute, "the calls end", func() { upset.Wait(); all.Wait() })
	_ = c.conn.Load().Close()
	within(t, time.Minute, "the server stops", c.stop)
	c.report()
	eventually(t, "all handlers return", func() bool { return c.handlers.Load() == 0 })
	before.check(t)
}

// stop stops the server and the proxy.
func (c *chaos) stop() {
	if c.child {
		c.endServer(syscall.SIGTERM)
		return
	}
	c.down(c.server.Stop)
	if c.proxy != nil {
		c.proxy.close()
	}
}

// chaos is a running scenario.
type chaos struct {
	scenario
	t    *testing.T
	seed uint64
	tell func(format string, args ...any) // reports failures; t does if nil
	over chan struct{}
	once sync.Once

	target  string // of the server
	dialled string // empty if it equals target

	proxy    *proxy
	process  *process
	restarts map[string]int // of the process, by signal
	again    atomic.Int64   // transparent retries

	server *nearcall.Server // owned by the goroutine that restarts it
	book   *book            // of the server's service; nil unless it is on a loop
	served chan error
	dialer atomic.Pointer[link.Dialer] // of the current listener
	conn   atomic.Pointer[nearcall.ClientConn]

	cancels  sync.Map     // cancel functions by tag, for handlers that cancel their callers
	handlers atomic.Int64 // running handlers
	failures atomic.Int64

	mu    sync.Mutex
	codes map[codes.Code]int
}

func (c *chaos) isOver() bool {
	select {
	case <-c.over:
		return true
	default:
		return false
	}
}

// endSoon ends the run if a call has succeeded or latest has passed, and otherwise
// tries again after another every. On a busy machine the first success can take longer
// than a run.
func (c *chaos) endSoon(every time.Duration, latest time.Time) {
	c.mu.Lock()
	n := c.codes[codes.OK]
	c.mu.Unlock()
	if n > 0 || time.Now().After(latest) {
		c.end()
		return
	}
	time.AfterFunc(every, func() { c.endSoon(every, latest) })
}

func (c *chaos) end() { c.once.Do(func() { close(c.over) }) }

// errorf reports a failure. It ends the run after five, which say as much as many.
func (c *chaos) errorf(format string, args ...any) {
	if c.failures.Add(1) <= 5 {
		if c.tell != nil {
			c.tell(format, args...)
			return
		}
		c.t.Errorf(format, args...)
	} else {
		c.end()
	}
}

func (c *chaos) report() {
	c.mu.Lock()
	defer c.mu.Unlock()
	var line []string
	for _, code := range slices.Sorted(maps.Keys(c.codes)) {
		line = append(line, fmt.Sprintf("%d %v", c.codes[code], code))
	}
	c.t.Logf("calls: %s", strings.Join(line, ", "))
	if n := c.again.Load(); n > 0 {
		c.t.Logf("%d were made again", n)
	}
	if c.proxy != nil {
		c.t.Logf("the proxy: %v", c.proxy.did)
	}
	if c.child {
		c.t.Logf("the server was ended: %v", c.restarts)
	}
	if c.codes[codes.OK] == 0 {
		c.t.Error("not one call succeeded")
	}
}

// up starts a server.
func (c *chaos) up() {
	if c.child {
		c.startServer()
		return
	}
	opts := append([]nearcall.ServerOption{
		nearcall.MaxRecvMsgSize(maxRecv),
		nearcall.ChainUnaryInterceptor(c.unaryGuard), nearcall.ChainStreamInterceptor(c.streamGuard),
	}, c.opts...)
	c.server = nearcall.NewServer(opts...)
	var at grpc.ServiceRegistrar = c.server
	if c.on != nil {
		c.book = openBook(c)
		at = c.server.On(c.book.loop)
	}
	testpb.RegisterTestServiceServer(at, &chaosService{chaos: c, book: c.book})
	server, served := c.server, make(chan error, 1)
	c.served = served
	if c.hostile != nil {
		o := *c.hostile
		o.Seed = rand.Uint64()
		lis := hostile.Listen("chaos", o)
		var dialer link.Dialer = lis.Dialer()
		go func() { served <- server.Serve(lis) }()
		c.dialer.Store(&dialer)
		return
	}
	lis, err := nearcall.Listen(c.target)
	if err != nil {
		c.t.Error(err)
		served <- err
		return
	}
	c.dialled = lis.Target()
	if c.proxy != nil {
		c.dialled = c.proxy.forward(lis.Addr())
	}
	go func() { served <- server.Serve(lis) }()
}

// down stops the server.
func (c *chaos) down(stop func()) {
	stop()
	if err := <-c.served; err != nil && !errors.Is(err, grpc.ErrServerStopped) { // stopped before Serve began
		c.errorf("Serve: %v", err)
	}
	if c.book != nil {
		c.book.close()
	}
}

// Dial implements [link.Dialer]. It dials the current listener.
func (c *chaos) Dial(ctx context.Context) (link.Session, error) {
	return (*c.dialer.Load()).Dial(ctx)
}

// dial replaces the connection that calls use.
func (c *chaos) dial() {
	opts := append([]nearcall.DialOption{nearcall.WithConnectParams(grpc.ConnectParams{
		Backoff: backoff.Config{BaseDelay: time.Millisecond, Multiplier: 1.2, MaxDelay: 5 * time.Millisecond},
	})}, over(c.network, c.dialling...)...)
	if c.network == "tcp" {
		opts = append(opts, nearcall.WithStatsHandler(retries{&c.again}))
	}
	if c.hostile != nil {
		opts = append(opts, hook.Dialer(c).(nearcall.DialOption))
	}
	conn, err := nearcall.NewClient(cmp.Or(c.dialled, c.target), opts...)
	if err != nil {
		c.t.Error(err)
		return
	}
	if old := c.conn.Swap(conn); old != nil {
		_ = old.Close()
	}
}

// storm restarts servers and closes connections until the run ends.
func (c *chaos) storm() {
	r := rand.New(rand.NewPCG(c.seed, 1000))
	for {
		select {
		case <-c.over:
			return
		case <-time.After(time.Duration(r.IntN(30)) * time.Millisecond):
		}
		s := c.server
		stop := s.Stop
		switch r.IntN(4) {
		case 0:
			stop = s.GracefulStop
		case 1:
			stop = func() {
				hurry := time.AfterFunc(time.Duration(r.IntN(1000))*time.Microsecond, s.Stop)
				s.GracefulStop()
				hurry.Stop()
			}
		case 2:
			if c.closing {
				c.dial()
				continue
			}
		}
		c.down(stop)
		c.up()
	}
}

// What a caller does during its call.
const (
	nothing     = iota
	doCancel    // it cancels after a while
	doDeadline  // it has a short timeout
	doCancelled // its context is cancelled before the call
	doLeave     // it leaves in the middle of a stream
	ends
)

// What a handler does during its call.
const (
	answer   = iota
	doNap    // it sleeps
	doDerive // it derives contexts
	doKill   // it cancels its caller
	doFail   // it returns an error
	doPanic  // it panics
	doGoexit // it calls runtime.Goexit
	doWait   // it waits until its context is done
	doStray  // it leaves a goroutine behind that uses the stream
	doTask   // it waits for another task of its loop, if it runs on one
	acts
)

const (
	unaryKind = iota
	outputKind
	inputKind
	duplexKind
	halfKind
	kinds
)

func (c *chaos) plan(r *rand.Rand) *plan {
	p := &plan{
		kind: r.IntN(kinds), tag: r.Uint64(), ready: r.IntN(2) == 0,
		after: time.Duration(r.IntN(1500)) * time.Microsecond,
	}
	if r.IntN(3) == 0 {
		p.end = r.IntN(ends)
	}
	if r.IntN(2) == 0 {
		p.act = r.IntN(acts)
	}
	n := 1
	if p.kind != unaryKind {
		n = 1 + r.IntN(20)
	}
	for range n {
		size := header + r.IntN(100)
		if r.IntN(10) == 0 {
			size += r.IntN(10_000)
		}
		p.sizes = append(p.sizes, size)
	}
	if p.kind == unaryKind && r.IntN(50) == 0 {
		p.sizes[0] = maxRecv + 1
	}
	p.at = r.IntN(n)
	if p.act == doGoexit && !c.worker {
		p.act = answer // Goexit would end the caller's goroutine
	}
	if p.act == doWait && p.end != doCancelled {
		p.end = doCancel + r.IntN(2) // otherwise the call would never end
	}
	return p
}

// call makes one call and checks how it ends.
func (c *chaos) call(r *rand.Rand) {
	p := c.plan(r)
	ctx, cancel := context.Background(), context.CancelFunc(func() {})
	if p.end != nothing || p.act == doKill || r.IntN(2) == 0 {
		ctx, cancel = context.WithCancel(ctx)
	}
	defer cancel()
	switch p.end {
	case doCancelled:
		cancel()
	case doCancel:
		defer time.AfterFunc(p.after, cancel).Stop()
	case doDeadline:
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, p.after)
		defer stop()
	}
	c.cancels.Store(p.tag, cancel)
	defer c.cancels.Delete(p.tag)
	ctx = metadata.AppendToOutgoingContext(ctx,
		"tag", strconv.FormatUint(p.tag, 16), "act", strconv.Itoa(p.act), "at", strconv.Itoa(p.at))

	var trailer metadata.MD
	var server peer.Peer
	var finished atomic.Int32
	opts := []grpc.CallOption{grpc.WaitForReady(p.ready), grpc.Trailer(&trailer), grpc.Peer(&server), grpc.OnFinish(func(error) { finished.Add(1) })}
	client := testpb.NewTestServiceClient(c.conn.Load())
	var err error
	switch p.kind {
	case unaryKind:
		err = p.unary(ctx, client, opts)
	case outputKind:
		err = p.output(ctx, cancel, client, opts)
	case inputKind:
		err = p.input(ctx, cancel, client, opts)
	default:
		err = p.both(ctx, cancel, client, opts)
	}
	code := status.Code(err)
	c.mu.Lock()
	if c.codes == nil {
		c.codes = make(map[codes.Code]int)
	}
	c.codes[code]++
	c.mu.Unlock()
	switch {
	case !slices.Contains(p.allowed(&c.scenario), code):
		c.errorf("%v: got %v, want one of %v", p, err, p.allowed(&c.scenario))
	case code == codes.FailedPrecondition && !strings.Contains(err.Error(), tagText(p.tag)):
		c.errorf("%v: got the error of another call: %v", p, err)
	case p.end == nothing && p.act != doKill && (code == codes.OK || code == codes.FailedPrecondition):
		// A cancelled call can end before its trailer arrives.
		if got := fmt.Sprint(trailer["tag"]); got != "["+tagText(p.tag)+"]" {
			c.errorf("%v: ended with %v and the trailer %s", p, err, got)
		}
		if c.network != "" && server.Addr.Network() != addressedAs(c.network) {
			c.errorf("%v: went over %s, want %s", p, server.Addr.Network(), c.network)
		}
	}
	// A session that breaks ends its calls from its own goroutine, which calls OnFinish
	// just before or just after RecvMsg returns, as in grpc-go.
	for range 5000 {
		if finished.Load() > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if code == codes.Unavailable && c.isNetwork() {
		time.Sleep(time.Millisecond) // otherwise failing calls would dominate
	}
	if finished.Load() != 1 {
		c.errorf("%v: OnFinish was called %d times", p, finished.Load())
	}
}

func tagText(tag uint64) string { return strconv.FormatUint(tag, 16) }

// Directions of a message, for its contents.
const (
	request = 1
	reply   = 2
)

// wrong returns err with a code that no plan allows.
func wrong(err error) error {
	if err == nil {
		return nil
	}
	return status.Error(codes.DataLoss, err.Error())
}

// Interceptors of the server.

func (c *chaos) unaryGuard(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (reply any, err error) {
	c.handlers.Add(1)
	defer c.handlers.Add(-1)
	defer guard(&err)
	return next(ctx, req)
}

func (c *chaos) streamGuard(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	c.handlers.Add(1)
	defer c.handlers.Add(-1)
	defer guard(&err)
	return next(srv, ss)
}

// guard recovers a panic and turns it into an error.
func guard(err *error) {
	if r := recover(); r != nil {
		*err = status.Errorf(codes.Internal, "panic: %v", r)
	}
}
