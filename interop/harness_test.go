package interop

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall/loop"
)

// caseTimeout is how long a case may take before it counts as hung: a case that sends 24 MB takes
// 20 s beside many busy processes.
const caseTimeout = 3 * time.Minute

// mostPatience is the longest time that the deadline of a case becomes by patience.
const mostPatience = 5 * time.Second

// A Case is a program that records what it observes.
type Case struct {
	Item int
	Name string
	Run  func(c *C)
}

// An Env is a way to connect a client with a server.
type Env struct {
	Name       string
	Background bool // calls use context.Background instead of a cancellable context
	Waits      bool // a caller waits for its handler, even if its context ends
	Hands      bool // a handler runs on its caller's goroutine until it first waits
	Near       bool // messages stay in the process, and nothing is compressed
	Start      func(cfg *Config) (*Link, error)
	Differs    map[string]string // by case name: why its transcript differs from grpc-go's
	Oracle     *Env              // whose transcripts are right as well; nil if there is none
}

// A Link is one connection to one server.
type Link struct {
	Conn         grpc.ClientConnInterface
	Close        func() error
	Stop         func()
	GracefulStop func()
}

// Conn is a started link, with TestService's stub.
type Conn struct {
	grpc.ClientConnInterface
	grpc_testing.TestServiceClient
	*Link
}

// C is what a case runs with. Its own notes are the client's.
type C struct {
	*Actor
	env  Env
	ctx  context.Context
	dead chan struct{} // closed when the case has hung
	skip string

	patience time.Duration // what deadlines are multiplied by

	mu      sync.Mutex
	timed   bool          // the case has made deadlines
	running int           // number of handlers
	idle    chan struct{} // made by end, and closed when no handler runs
	closed  bool
	actors  map[string]*Actor
	cleanup []func()
}

// An Actor has the notes of one sequential part of a case, so that a transcript does not
// depend on how the parts interleave.
type Actor struct {
	c     *C
	name  string
	lines []string
}

// A Transcript is what a case has noted, sorted by actor.
type Transcript struct {
	Lines  []string
	Stacks string // set when the case hung
	Skip   string // why the case does not apply to its environment
	Timed  bool   // it has deadlines, which a busy machine can miss
}

// Record runs a case on env and returns its transcript. Deadlines are multiplied by patience.
func (k Case) Record(env Env, patience time.Duration) Transcript {
	c := &C{env: env, ctx: context.Background(), dead: make(chan struct{}), actors: map[string]*Actor{}, patience: patience}
	c.Actor = c.Named("client")
	cancel := context.CancelFunc(func() {})
	if !env.Background {
		c.ctx, cancel = context.WithCancel(c.ctx)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer c.end(cancel)
		k.Run(c)
	}()
	hung := time.NewTimer(caseTimeout)
	defer hung.Stop()
	select {
	case <-done:
		return Transcript{Lines: c.transcript(), Skip: c.skip, Timed: c.isTimed()}
	case <-hung.C:
	}
	buf := make([]byte, 1<<20)
	t := Transcript{Stacks: string(buf[:runtime.Stack(buf, true)])}
	c.Note("HUNG: the case did not end within %v", caseTimeout)
	close(c.dead)
	cancel()
	select {
	case <-done:
	case <-time.After(time.Second):
	}
	t.Lines, t.Timed = c.transcript(), c.isTimed()
	return t
}

func (c *C) isTimed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.timed
}

// end releases what the case has started, and waits for its handlers.
func (c *C) end(cancel func()) {
	switch r := recover().(type) {
	case nil:
	case notHere:
		c.skip = string(r)
	default:
		buf := make([]byte, 8<<10)
		c.Note("PANIC: %v\n%s", r, buf[:runtime.Stack(buf, false)])
	}
	cancel()
	for _, f := range slices.Backward(c.cleanup) {
		f()
	}
	c.mu.Lock()
	idle := make(chan struct{})
	if c.idle = idle; c.running == 0 {
		close(idle)
	}
	c.mu.Unlock()
	c.Wait(idle)
}

// enter counts a handler; leave ends it.
func (c *C) enter() (leave func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.running--; c.running == 0 && c.idle != nil {
			select {
			case <-c.idle:
			default:
				close(c.idle)
			}
		}
	}
}

// notHere ends a case that does not apply to its environment.
type notHere string

// CallerLeaves skips the case if callers wait for their handlers.
func (c *C) CallerLeaves() {
	if c.env.Waits {
		panic(notHere("handlers run on their caller"))
	}
}

// CodecsApart skips the case if the server's codec can run on the caller's goroutine.
func (c *C) CodecsApart() {
	if c.env.Waits || c.env.Hands {
		panic(notHere("handlers run or begin on their caller, and the server's codec with them"))
	}
}

// Compresses skips the case if messages are not compressed.
func (c *C) Compresses() {
	if c.env.Near {
		panic(notHere("nothing is compressed"))
	}
}

func (c *C) transcript() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	var names []string
	for n := range c.actors {
		names = append(names, n)
	}
	sort.Strings(names)
	var out []string
	for _, n := range names {
		for _, l := range c.actors[n].lines {
			out = append(out, n+": "+l)
		}
	}
	return out
}

// Start starts a server and a client, which end with the case.
func (c *C) Start(cfg Config) *Conn {
	conn, err := c.TryStart(cfg)
	if err != nil {
		panic(fmt.Sprintf("cannot start: %v", err))
	}
	return conn
}

// TryStart is Start for configurations that are refused.
func (c *C) TryStart(cfg Config) (*Conn, error) {
	if cfg.Service != nil {
		cfg.Service.c = c
		cfg.Register = append([]func(grpc.ServiceRegistrar){func(r grpc.ServiceRegistrar) {
			grpc_testing.RegisterTestServiceServer(r, cfg.Service)
		}}, cfg.Register...)
	}
	l, err := c.env.Start(&cfg)
	if err != nil {
		return nil, err
	}
	c.cleanup = append(c.cleanup, func() { l.Close(); l.Stop() })
	return &Conn{l.Conn, grpc_testing.NewTestServiceClient(l.Conn), l}, nil
}

// Context returns the context of the case's calls.
func (c *C) Context() context.Context { return c.ctx }

// Cancellable returns a context that the case cancels itself.
func (c *C) Cancellable() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(c.ctx)
	c.cleanup = append(c.cleanup, cancel)
	return ctx, cancel
}

// Timeout returns a context with a deadline.
func (c *C) Timeout(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(c.ctx, c.Patiently(d))
	c.cleanup = append(c.cleanup, cancel)
	return ctx
}

// Patiently returns d, the time after which a call ends, or a multiple of it if the case was too slow
// before.
func (c *C) Patiently(d time.Duration) time.Duration {
	c.mu.Lock()
	c.timed = true
	c.mu.Unlock()
	return max(min(d*c.patience, mostPatience), d)
}

// Lasting returns how long something lasts that should last d, on a machine that is not busy.
func (c *C) Lasting(d time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timed = true
	return d * c.patience
}

// Wait waits for ch, but not longer than the case may run.
func (c *C) Wait(ch <-chan struct{}) {
	select {
	case <-ch:
	case <-c.dead:
	}
}

// Until waits for ch in a handler with context ctx. On a loop, other handlers run in the
// meantime.
func Until(ctx context.Context, ch <-chan struct{}) {
	_, err := loop.Await(context.WithoutCancel(ctx), func(resume func(struct{}, error)) {
		go func() {
			<-ch
			resume(struct{}{}, nil)
		}()
	})
	if err != nil {
		<-ch
	}
}

// Pause gives wrong behaviour time to show. No case needs it to pass.
func (c *C) Pause() { time.Sleep(5 * time.Millisecond) }

// Gate returns an event that happens once.
func (c *C) Gate() *Gate { return &Gate{c: c, ch: make(chan struct{})} }

type Gate struct {
	c    *C
	once sync.Once
	ch   chan struct{}
}

func (g *Gate) Open() { g.once.Do(func() { close(g.ch) }) }
func (g *Gate) Wait() { g.c.Wait(g.ch) }

// Until is Wait in a handler with context ctx.
func (g *Gate) Until(ctx context.Context) { Until(ctx, g.ch) }

func (g *Gate) IsOpen() bool {
	select {
	case <-g.ch:
		return true
	default:
		return false
	}
}

// Named returns the actor of that name.
func (c *C) Named(name string) *Actor {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.actors[name]
	if a == nil {
		a = &Actor{c: c, name: name}
		c.actors[name] = a
	}
	return a
}

// Note adds a line.
func (a *Actor) Note(format string, args ...any) {
	a.c.mu.Lock()
	defer a.c.mu.Unlock()
	if a.c.closed {
		return // the case has hung and was given up
	}
	// protobuf's errors contain no-break spaces at places that are random per program.
	line := strings.NewReplacer("\u00a0", " ", `\u00a0`, " ").Replace(fmt.Sprintf(format, args...))
	a.lines = append(a.lines, line)
}

// Err notes all that a program can see of an error.
func (a *Actor) Err(label string, err error) {
	st, line := describe(err)
	if st != nil {
		line += fmt.Sprintf(" message=%q", st.Message())
		for _, d := range st.Details() {
			if m, ok := d.(proto.Message); ok {
				line += fmt.Sprintf(" detail=%s{%x}", m.ProtoReflect().Descriptor().FullName(), marshal(m))
			} else {
				line += fmt.Sprintf(" detail=%T", d)
			}
		}
	}
	a.Note("%s: %s", label, line)
}

// Code notes an error without its message, for messages that depend on the transport or on
// timing.
func (a *Actor) Code(label string, err error) {
	_, line := describe(err)
	a.Note("%s: %s", label, line)
}

func describe(err error) (*status.Status, string) {
	if err == nil {
		return nil, "nil"
	}
	if err == io.EOF {
		return nil, "EOF"
	}
	s, ok := err.(interface{ GRPCStatus() *status.Status })
	if !ok {
		return nil, fmt.Sprintf("not a status error: %T %v", err, err)
	}
	return s.GRPCStatus(), "status " + s.GRPCStatus().Code().String()
}

// MD notes metadata, without the implementation's own keys.
func (a *Actor) MD(label string, md metadata.MD) {
	if md == nil {
		a.Note("%s: nil", label)
		return
	}
	a.Note("%s: %s", label, showMD(md))
}

// ownKeys are the keys that implementations add. Their values differ (authority, user
// agent), or only HTTP/2 needs them. Item 5 tests those that a handler can rely on.
var ownKeys = []string{":authority", "content-type", "user-agent"}

func showMD(md metadata.MD) string {
	var out []string
	for k, v := range md {
		if !slices.Contains(ownKeys, k) {
			out = append(out, fmt.Sprintf("%s=%q", k, v))
		}
	}
	sort.Strings(out)
	return "{" + strings.Join(out, " ") + "}"
}

// Msg notes a message in its encoded form.
func (a *Actor) Msg(label string, m proto.Message) {
	a.Note("%s: %x", label, marshal(m))
}

func marshal(m proto.Message) []byte {
	b, err := proto.MarshalOptions{Deterministic: true, AllowPartial: true}.Marshal(m)
	if err != nil {
		return []byte(err.Error())
	}
	return b
}
