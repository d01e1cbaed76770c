// Package chaos makes random calls while everything around them fails.
package chaos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
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

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/child"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/testing/looptest"
)

// Run runs scenarios, which share the time that lasts gives.
//
// Each makes random calls of all kinds from several goroutines, while they are cancelled, while
// handlers fail and panic, and while servers stop, sessions break and connections close. Every call
// must end with the answer to its own request, or with an error that its plan explains. In the end
// no handler runs, and no goroutine, descriptor or memory is left. Handlers on a loop also keep a
// book without a lock, whose totals must match.
func Run(t *testing.T, scenarios []Scenario, lasts time.Duration) {
	for _, s := range scenarios {
		t.Run(s.Name, func(t *testing.T) { s.run(t, lasts/time.Duration(len(scenarios))) })
	}
}

// Duration returns how long a run takes: lasts, a sixth of it with -short, or what the environment
// variable says.
func Duration(t testing.TB, variable string, lasts time.Duration) time.Duration {
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

// A Scenario says how calls are made and which faults are injected. A Child has no Proxy in front of
// it and no loop, and a server behind a Proxy is not restarted.
type Scenario struct {
	Name    string
	Target  func(testing.TB) string              // returns an unused target for the server; nil for one in process
	Network string                               // of the addresses of peers; "" if any will do
	Proxy   func(*testing.T, uint64) Proxy       // makes a proxy in front of the server, from a seed, unless nil
	Child   func(string) (*child.Process, error) // starts a server of the target in another process, which calls Serve, unless nil
	On      *looptest.Kind                       // the loop of the service, if any
	Server  []nearcall.ServerOption
	Client  []nearcall.DialOption
	Worker  bool // no handler runs on its caller's goroutine
	Storm   bool // servers are restarted
	Closing bool // connections are closed as well
	Retries bool // transparent retries are counted
}

// A Proxy forwards what client and server send, and injects faults.
type Proxy interface {
	Forward(server net.Addr) (target string) // called once, before any other method
	Upset(over <-chan struct{})              // injects faults until over is closed
	Close()
	Did() string // what it did, for the log
}

// faulty reports whether the scenario has faults of the network, or of the server's process.
func (s *Scenario) faulty() bool { return s.Proxy != nil || s.Child != nil }

const (
	callers = 100
	maxRecv = 64 << 10 // the server's MaxRecvMsgSize, in bytes
)

func (s Scenario) run(t *testing.T, lasts time.Duration) {
	before := leak.Measure()
	c := &chaos{Scenario: s, t: t, calm: make(chan struct{}), over: make(chan struct{}), seed: rand.Uint64(), target: "inproc:chaos"}
	t.Logf("seed %d", c.seed)
	if s.Target != nil {
		c.target = s.Target(t)
	}
	if s.Proxy != nil {
		c.proxy = s.Proxy(t, c.seed)
	}
	if s.Child != nil {
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
	if s.Storm {
		upset.Go(c.storm)
	}
	if c.proxy != nil {
		upset.Go(func() { c.proxy.Upset(c.calm) })
	}
	if s.Child != nil {
		upset.Go(c.stormChild)
	}
	time.AfterFunc(lasts, func() { c.endSoon(lasts, time.Now().Add(20*time.Second)) })
	leak.Within(t, lasts+time.Minute, "the calls end", func() { upset.Wait(); all.Wait() })
	_ = c.conn.Load().Close()
	leak.Within(t, time.Minute, "the server stops", c.stop)
	c.report()
	leak.Eventually(t, "all handlers return", func() bool { return c.handlers.Load() == 0 })
	before.Check(t)
}

// stop stops the server and the proxy.
func (c *chaos) stop() {
	if c.Child != nil {
		c.endServer(syscall.SIGTERM)
		return
	}
	c.down(c.server.Stop)
	if c.proxy != nil {
		c.proxy.Close()
	}
}

// chaos is a running scenario.
type chaos struct {
	Scenario
	t    *testing.T
	seed uint64
	tell func(format string, args ...any) // reports failures; t does if nil
	calm chan struct{}                    // closed when no more faults are injected
	over chan struct{}                    // closed when no more calls are made
	once struct{ calm, over sync.Once }

	target  string // of the server
	dialled string // empty if it equals target

	proxy    Proxy // nil if there is none
	process  *child.Process
	restarts map[string]int // of the process, by signal
	again    atomic.Int64   // transparent retries

	server *nearcall.Server // owned by the goroutine that restarts it
	book   *book            // of the server's service; nil unless it is on a loop
	served chan error
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

// endSoon ends the run if a call has succeeded or latest has passed. Otherwise it ends
// the faults alone, and tries again after another every. On a busy machine the first
// success can take longer than a run, and longer than connections and servers last.
func (c *chaos) endSoon(every time.Duration, latest time.Time) {
	c.mu.Lock()
	n := c.codes[codes.OK]
	c.mu.Unlock()
	if n > 0 || time.Now().After(latest) {
		c.end()
		return
	}
	c.quieten()
	time.AfterFunc(every, func() { c.endSoon(every, latest) })
}

// quieten ends the faults that are injected.
func (c *chaos) quieten() { c.once.calm.Do(func() { close(c.calm) }) }

func (c *chaos) end() {
	c.quieten()
	c.once.over.Do(func() { close(c.over) })
}

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
		c.t.Logf("the proxy: %s", c.proxy.Did())
	}
	if c.Child != nil {
		c.t.Logf("the server was ended: %v", c.restarts)
	}
	if c.codes[codes.OK] == 0 {
		c.t.Error("not one call succeeded")
	}
}

// up starts a server.
func (c *chaos) up() {
	if c.Child != nil {
		c.startServer()
		return
	}
	opts := append([]nearcall.ServerOption{
		nearcall.MaxRecvMsgSize(maxRecv),
		nearcall.ChainUnaryInterceptor(c.unaryGuard), nearcall.ChainStreamInterceptor(c.streamGuard),
	}, c.Server...)
	c.server = nearcall.NewServer(opts...)
	var at grpc.ServiceRegistrar = c.server
	if c.On != nil {
		c.book = openBook(c)
		at = c.server.OnLoop(c.book.loop)
	}
	testpb.RegisterTestServiceServer(at, &chaosService{chaos: c, book: c.book})
	server, served := c.server, make(chan error, 1)
	c.served = served
	var lis nearcall.Listener
	err := Again(func() (err error) {
		lis, err = nearcall.Listen(c.target)
		return err
	})
	if err != nil {
		c.t.Error(err)
		served <- err
		return
	}
	c.dialled = lis.Target()
	if c.proxy != nil {
		c.dialled = c.proxy.Forward(lis.Addr())
	}
	go func() { served <- server.Serve(lis) }()
}

// Again calls listen until it succeeds, for ten seconds: an address that was in use can stay so for a
// while. A server over QUIC keeps its port for 5 seconds, until its last connection has ended, and
// Windows may keep any.
func Again(listen func() error) (err error) {
	for range 1000 {
		if err = listen(); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return err
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

// dial replaces the connection that calls use.
func (c *chaos) dial() {
	opts := append([]nearcall.DialOption{nearcall.WithConnectParams(grpc.ConnectParams{
		Backoff: backoff.Config{BaseDelay: time.Millisecond, Multiplier: 1.2, MaxDelay: 5 * time.Millisecond}, MinConnectTimeout: 20 * time.Second,
	})}, c.Client...)
	if c.Retries {
		opts = append(opts, nearcall.WithStatsHandler(retries{&c.again}))
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

// pause waits for a random time, shorter than most. It returns false if over is closed.
func pause(over <-chan struct{}, r *rand.Rand, most time.Duration) bool {
	select {
	case <-over:
		return false
	case <-time.After(time.Duration(r.Int64N(int64(most)))):
		return true
	}
}

// storm restarts servers and closes connections until the faults end.
func (c *chaos) storm() {
	r := rand.New(rand.NewPCG(c.seed, 1000))
	for pause(c.calm, r, 30*time.Millisecond) {
		s := c.server
		stop := s.Stop
		switch r.IntN(4) {
		case 0:
			stop = s.GracefulStop
		case 1:
			stop = func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(r.IntN(1000))*time.Microsecond)
				defer cancel()
				_ = s.Shutdown(ctx)
			}
		case 2:
			if c.Closing {
				c.dial()
				continue
			}
		}
		c.down(stop)
		c.up()
	}
}
