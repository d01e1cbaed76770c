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

// caseTimeout is how long a case may take before it counts as hung.
const caseTimeout = 20 * time.Second

// A Case is a program that notes what it observes.
type Case struct {
	Item int
	Name string
	Run  func(c *C)
}

// An Env is a way to connect a client with a server.
type Env struct {
	Name       string
	Background bool // calls use context.Background instead of a cancellable context
	Waits      bool // a caller waits for its handler, whatever happens to its context
	Hands      bool // a handler begins on its caller's goroutine, until it waits for the first time
	Near       bool // messages stay in the process, and nothing is compressed
	Start      func(cfg *Config) (*Link, error)
	Differs    map[string]string // by the name of a case: why its transcript must differ from grpc-go's
}

// A Link is what an environment gives: one connection to one server.
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

	mu      sync.Mutex
	running int           // handlers
	idle    chan struct{} // made by the end, closed when no handler runs
	closed  bool
	actors  map[string]*Actor
	cleanup []func()
}

// An Actor keeps the notes of one sequential part of a case, so that a transcript does not depend
// on how its parts interleave.
type Actor struct {
	c     *C
	name  string
	lines []string
}

// A Transcript is what a case has noted, actor by actor.
type Transcript struct {
	Lines  []string
	Stacks string // set when the case hung
	Skip   string // why the case says nothing about its environment
}

// Record runs a case on env and returns its transcript.
func (k Case) Record(env Env) Transcript {
	c := &C{env: env, ctx: context.Background(), dead: make(chan struct{}), actors: map[string]*Actor{}}
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
		return Transcript{Lines: c.transcript(), Skip: c.skip}
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
	t.Lines = c.transcript()
	return t
}

// end frees what the case started, and waits for its handlers.
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

// enter counts a handler; what it returns counts it out.
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

// notHere ends a case that has nothing to say about its environment.
type notHere string

// CallerLeaves says that the case needs a caller that leaves before its handler returns.
func (c *C) CallerLeaves() {
	if c.env.Waits {
		panic(notHere("handlers run on their caller"))
	}
}

// CodecsApart says that the case needs a server whose codec runs on goroutines of its own.
func (c *C) CodecsApart() {
	if c.env.Waits || c.env.Hands {
		panic(notHere("handlers run or begin on their caller, and the server's codec with them"))
	}
}

// Compresses says that the case is about messages that are compressed.
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

// Context is the context of the case's calls.
func (c *C) Context() context.Context { return c.ctx }

// Cancellable is a context that the case cancels itself.
func (c *C) Cancellable() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(c.ctx)
	c.cleanup = append(c.cleanup, cancel)
	return ctx, cancel
}

// Timeout is a context with a deadline.
func (c *C) Timeout(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(c.ctx, d)
	c.cleanup = append(c.cleanup, cancel)
	return ctx
}

// Wait waits for ch, unless the case hangs.
func (c *C) Wait(ch <-chan struct{}) {
	select {
	case <-ch:
	case <-c.dead:
	}
}

// Until waits for ch in a handler, whose context ctx is. On a loop others run meanwhile.
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

// Pause gives wrong behaviour a chance to show. No case needs it to pass.
func (c *C) Pause() { time.Sleep(5 * time.Millisecond) }

// Gate is an event that happens once.
func (c *C) Gate() *Gate { return &Gate{c: c, ch: make(chan struct{})} }

type Gate struct {
	c    *C
	once sync.Once
	ch   chan struct{}
}

func (g *Gate) Open() { g.once.Do(func() { close(g.ch) }) }
func (g *Gate) Wait() { g.c.Wait(g.ch) }

// Until is Wait in a handler, whose context ctx is.
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
		return // the case has hung and is over
	}
	// protobuf's errors put a no-break space at random places, chosen once a program.
	line := strings.NewReplacer("\u00a0", " ", `\u00a0`, " ").Replace(fmt.Sprintf(format, args...))
	a.lines = append(a.lines, line)
}

// Err notes an error with all that a program can see of it.
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

// Code notes an error whose message is the transport's own, or a matter of timing.
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

// MD notes metadata, without the keys that the implementation adds for itself.
func (a *Actor) MD(label string, md metadata.MD) {
	if md == nil {
		a.Note("%s: nil", label)
		return
	}
	a.Note("%s: %s", label, showMD(md))
}

// ownKeys are what implementations add: their values differ (authority, user agent), or nothing but
// HTTP/2 needs them. Item 5 looks at those that a handler may rely on.
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

// Msg notes a message, by its encoded form.
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
