package targets

import (
	"context"
	"flag"
	"fmt"
	"io"
	"regexp"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall/interop"
)

var twice = flag.Bool("twice", false, "compare grpc-go with itself")

// caseTimeout is how long a case may take before it counts as hung.
const caseTimeout = 2 * time.Minute

// patience is how long a case waits for an event that should come soon.
const patience = 30 * time.Second

// A Case is a program that records what it observes.
type Case struct {
	Name    string
	Run     func(c *C)
	Sizes   []int  // numbers of servers; nil means 1 and 3
	Fleets  []kind // nil means all
	Plain   bool   // without TLS only
	Secure  bool   // with TLS only
	Differs string // why nearcall's transcript differs from grpc-go's
}

// A Setup is what a case runs in.
type Setup struct {
	Kind kind
	Size int
	TLS  bool
}

func (s Setup) String() string {
	name := fmt.Sprintf("%s-%d", s.Kind, s.Size)
	if s.TLS {
		name += "-tls"
	}
	return name
}

func (k Case) setups() []Setup {
	sizes, kinds := k.Sizes, k.Fleets
	if sizes == nil {
		sizes = []int{1, 3}
	}
	if kinds == nil {
		kinds = []kind{ordinary, near, mixed}
	}
	var out []Setup
	for _, kind := range kinds {
		for _, size := range sizes {
			if kind == mixed && size == 1 {
				continue
			}
			if !k.Secure {
				out = append(out, Setup{kind, size, false})
			}
			if !k.Plain && kind != inProcess {
				out = append(out, Setup{kind, size, true})
			}
		}
	}
	return out
}

// C is what a case runs with. Its own notes are the client's.
type C struct {
	*Actor
	Setup
	dialer dialer
	ctx    context.Context
	cancel context.CancelFunc
	scale  time.Duration // what deadlines are multiplied by

	mu      sync.Mutex
	timed   bool // the case has made deadlines
	closed  bool
	actors  map[string]*Actor
	names   map[string]string // what stands for addresses in transcripts
	cleanup []func()
}

// An Actor has the notes of one sequential part of a case, so that a transcript does not depend on how the
// parts interleave.
type Actor struct {
	c     *C
	lines []string
}

// A Transcript is what a case has noted, sorted by actor.
type Transcript struct {
	Lines []string
	Timed bool // it has deadlines, which a busy machine can miss
	Hung  string
}

// Record runs a case and returns its transcript.
func (k Case) Record(dial dialer, setup Setup, scale time.Duration) Transcript {
	c := &C{Setup: setup, dialer: dial, scale: scale, actors: map[string]*Actor{}, names: map[string]string{}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.Actor = c.Named("client")
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer c.end()
		k.Run(c)
	}()
	hung := time.NewTimer(caseTimeout)
	defer hung.Stop()
	var stacks string
	select {
	case <-done:
	case <-hung.C:
		buf := make([]byte, 1<<20)
		stacks = string(buf[:runtime.Stack(buf, true)])
		c.Note("HUNG: the case did not end within %v", caseTimeout)
		c.cancel()
		select {
		case <-done:
		case <-time.After(time.Second):
		}
	}
	return c.transcript(stacks)
}

// end releases what the case has started.
func (c *C) end() {
	if r := recover(); r != nil {
		buf := make([]byte, 8<<10)
		c.Note("PANIC: %v\n%s", r, buf[:runtime.Stack(buf, false)])
	}
	c.cancel()
	for _, f := range slices.Backward(c.cleanup) {
		f()
	}
}

func (c *C) transcript(stacks string) Transcript {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	var names []string
	for n := range c.actors {
		names = append(names, n)
	}
	sort.Strings(names)
	t := Transcript{Timed: c.timed, Hung: stacks}
	for _, n := range names {
		for _, l := range c.actors[n].lines {
			t.Lines = append(t.Lines, n+": "+l)
		}
	}
	return t
}

// Cleanup runs f at the end of the case, after what was added later.
func (c *C) Cleanup(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cleanup = append(c.cleanup, f)
}

// Named returns the actor of that name.
func (c *C) Named(name string) *Actor {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.actors[name]
	if a == nil {
		a = &Actor{c: c}
		c.actors[name] = a
	}
	return a
}

// Call lets text stand for an address in the transcript.
func (c *C) Call(address, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.names[address] = text
}

// clientAddress is the address of a client's end of a connection. Servers have names.
var clientAddress = regexp.MustCompile(`127\.\d+\.\d+\.\d+:\d+`)

// Text returns text with names instead of addresses.
func (c *C) Text(text string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.textLocked(text)
}

func (c *C) textLocked(text string) string {
	addresses := make([]string, 0, len(c.names))
	for a := range c.names {
		addresses = append(addresses, a)
	}
	// One address can begin with another.
	slices.SortFunc(addresses, func(a, b string) int { return len(b) - len(a) })
	for _, a := range addresses {
		text = strings.ReplaceAll(text, a, c.names[a])
	}
	return clientAddress.ReplaceAllString(strings.ReplaceAll(text, "\u00a0", " "), "CLIENT")
}

// Note adds a line.
func (a *Actor) Note(format string, args ...any) {
	a.c.mu.Lock()
	defer a.c.mu.Unlock()
	if !a.c.closed { // otherwise the case has hung and was given up
		a.lines = append(a.lines, a.c.textLocked(fmt.Sprintf(format, args...)))
	}
}

// Err notes all that a program can see of an error.
func (a *Actor) Err(label string, err error) {
	a.Note("%s: %s", label, describe(err))
}

// Code notes an error without its message, for messages that depend on timing.
func (a *Actor) Code(label string, err error) {
	a.Note("%s: %v", label, status.Code(err))
}

func describe(err error) string {
	switch {
	case err == nil:
		return "nil"
	case err == io.EOF:
		return "EOF"
	}
	s, ok := err.(interface{ GRPCStatus() *status.Status })
	if !ok {
		return fmt.Sprintf("not a status error: %v", err)
	}
	line := fmt.Sprintf("%v %q", s.GRPCStatus().Code(), s.GRPCStatus().Message())
	for _, d := range s.GRPCStatus().Details() {
		if m, ok := d.(proto.Message); ok {
			line += fmt.Sprintf(" detail=%s", m.ProtoReflect().Descriptor().FullName())
		}
	}
	return line
}

// Context returns a context that ends with the case.
func (c *C) Context() context.Context { return c.ctx }

// Timeout returns a context with a deadline.
func (c *C) Timeout(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(c.ctx, c.Lasting(d))
	c.Cleanup(cancel)
	return ctx
}

// Lasting returns how long something lasts that should last d on a machine that is not busy.
func (c *C) Lasting(d time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timed = true
	return d * c.scale
}

// Until waits until f returns true, and notes if that does not happen.
func (c *C) Until(what string, f func() bool) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !f(); <-tick.C {
		if c.ctx.Err() != nil || time.Now().After(end) {
			c.Note("IT DID NOT HAPPEN: %s", what)
			return
		}
	}
}

// Pause gives wrong behaviour time to show. No case needs it to pass.
func (c *C) Pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-c.ctx.Done():
	}
}

// run compares the cases' transcripts in each of their setups.
func run(t *testing.T, cases []Case) {
	t.Parallel() // most cases wait
	named := map[string]bool{}
	for _, k := range cases {
		if named[k.Name] {
			t.Errorf("two cases are called %q", k.Name)
		}
		named[k.Name] = true
		t.Run(strings.ReplaceAll(k.Name, " ", "-"), func(t *testing.T) {
			var mu sync.Mutex
			differs := k.Differs == ""
			for _, setup := range k.setups() {
				t.Run(setup.String(), func(t *testing.T) {
					t.Parallel()
					if d := k.compare(t, setup); d != "" && k.Differs == "" {
						t.Errorf("differs from grpc-go (- grpc-go, + nearcall):\n%s", d)
					} else if d != "" {
						t.Logf("%s:\n%s", k.Differs, d)
						mu.Lock()
						differs = true
						mu.Unlock()
					}
				})
			}
			t.Cleanup(func() {
				if !differs && !t.Failed() && !*twice {
					t.Errorf("the case no longer differs from grpc-go: remove %q", k.Differs)
				}
			})
		})
	}
}

// failed tells whether the case has not run as it should on every client.
func (t Transcript) failed() bool {
	return slices.ContainsFunc(t.Lines, func(l string) bool {
		return strings.Contains(l, "IT DID NOT HAPPEN") || strings.Contains(l, "PANIC")
	})
}

// compare returns how the transcripts of a case differ, or "".
func (k Case) compare(t *testing.T, setup Setup) string {
	other := nearcallClient
	if *twice {
		other = grpcClient
	}
	want, got := k.Record(grpcClient, setup, 1), k.Record(other, setup, 1)
	// On a busy machine a deadline can pass before what it should end has begun.
	for scale := time.Duration(4); scale <= 16 && (got.Timed || want.Timed) && (want.failed() || !slices.Equal(want.Lines, got.Lines)); scale *= 4 {
		want, got = k.Record(grpcClient, setup, scale), k.Record(other, setup, scale)
	}
	switch {
	case want.Hung != "":
		t.Fatalf("the case hangs on grpc-go\n%s\n%s", strings.Join(want.Lines, "\n"), want.Hung)
	case len(want.Lines) == 0:
		t.Fatal("the case notes nothing")
	case want.failed():
		t.Fatalf("the case fails on grpc-go\n%s", strings.Join(want.Lines, "\n"))
	case slices.Equal(want.Lines, got.Lines):
		if testing.Verbose() {
			t.Logf("\n%s", strings.Join(got.Lines, "\n"))
		}
		return ""
	case got.Hung != "":
		t.Logf("hung:\n%s", got.Hung)
	}
	return interop.Diff(want.Lines, got.Lines)
}

// allCodes are the codes of errors.
var allCodes = func() (all []codes.Code) {
	for c := codes.Canceled; c <= codes.Unauthenticated; c++ {
		all = append(all, c)
	}
	return all
}()
