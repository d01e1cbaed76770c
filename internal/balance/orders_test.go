package balance

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/balancer"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/transport/grpcgo"
)

// This file runs a call to an ordinary server, and what happens to its connection meanwhile, in every
// order of their steps. The pickers, the pins, the SubConns and what the channel knows of its picker
// are the code; a world has what surrounds them: the loop in which grpc-go picks, the connections and
// the policies. A step is what a goroutine does before another one can notice.

// A world is a channel to two SubConns, old and next, and a call.
type world struct {
	channel *Channel
	subs    map[balancer.SubConn]*connection // by grpc-go's SubConn
	old     *subConn
	next    *subConn
	first   *picker // picks old
	picker  *picker // grpc-go's; nil while it has none, and at the end
	changed int     // how often it was replaced
	closed  bool    // grpc-go's ClientConn
	call    steps   // what the call does next; nil if it has ended
	blocked func() bool
	context struct{ ended, pin bool } // the call's, and the one of its pin
	got     *connection               // over which it was made
	ended   string                    // its error
	faults  faults
}

// steps is a step of the call. It returns the next one.
type steps func() steps

// A connection is that of a SubConn of grpc-go.
type connection struct {
	balancer.SubConn
	ready bool
}

// faults are mistakes. The exploration must find each.
type faults struct {
	waits bool // a pin lets grpc-go wait whichever picker it has asked
	ends  bool // a pin never lets grpc-go wait
	stale bool // the channel goes on to ask the picker that it knows
}

// A chosen picker picks sc. If sc is nil it connects old, as an idle policy does, and waits.
type chosen struct {
	sc      *subConn
	connect func()
}

func (c chosen) Pick(balancer.PickInfo) (balancer.PickResult, error) {
	if c.sc == nil {
		if c.connect != nil {
			c.connect()
		}
		return balancer.PickResult{}, balancer.ErrNoSubConnAvailable
	}
	return balancer.PickResult{SubConn: c.sc}, nil
}

func newWorld(f faults) *world {
	w := &world{channel: &Channel{}, subs: make(map[balancer.SubConn]*connection), faults: f}
	w.old, w.next = w.subConn(), w.subConn()
	for _, sc := range []*subConn{w.old, w.next} {
		w.connects(sc)
	}
	w.first = w.channel.newPicker(chosen{sc: w.old})
	w.picker = w.first
	w.channel.use(w.first, 0)
	w.call = w.pick
	return w
}

func (w *world) subConn() *subConn {
	c := new(connection)
	w.subs[c] = c
	return &subConn{SubConn: c, channel: w.channel}
}

func (w *world) of(sc *subConn) *connection { return w.subs[sc.SubConn] }

// connects connects sc to an ordinary server.
func (w *world) connects(sc *subConn) {
	sc.begin(&current{pinned: true, Session: grpcgo.NewSession(nil, "", "", link.Peer{}, func() {})})
	w.of(sc).ready = true
	sc.ready.Store(true)
}

// pick is [Channel.Pick].
func (w *world) pick() steps {
	if w.contextEnds() {
		return nil
	}
	p := w.channel.picker.Load()
	if p == nil {
		return w.capture
	}
	return func() steps {
		if pick, err := p.pick(balancer.PickInfo{Ctx: context.Background()}); err == nil {
			return w.pinnedTo(pick.Session)
		}
		return w.capture
	}
}

// capture is the part of it that lets grpc-go make the call up to its pick.
func (w *world) capture() steps {
	w.channel.mu.Lock()
	to := &capture{waitForReady: true, generation: w.channel.generation, pickers: w.channel.pickers}
	w.channel.mu.Unlock()
	ctx := context.WithValue(context.Background(), ownKey{}, to)
	return w.loop(ctx, -1, func(_ *connection, err error) steps {
		if to.pick.Session == nil {
			w.ended = err.Error()
			return nil
		}
		return w.pinnedTo(to.pick.Session)
	})
}

// pinnedTo makes the call with grpc-go, over the connection of a session.
func (w *world) pinnedTo(s link.Session) steps {
	sc := w.old
	if c := w.next.current.Load(); c != nil && c.Session == s {
		sc = w.next
	}
	over := sc.current.Load()
	if over == nil || over.Session != s { // it was replaced
		over = &current{Session: s, pinned: true}
	}
	own := &pin{pinned: &pinned{channel: w.channel, sc: sc, over: over}, cancel: func() { w.context.pin = true }}
	return w.loop(context.WithValue(context.Background(), ownKey{}, own), -1, func(c *connection, err error) steps {
		w.context.pin = false
		var lost link.Unprocessed
		switch {
		case err == nil:
			w.got = c
			return nil
		case errors.As(own.lost(err), &lost) && lost.Unsent:
			return w.pick
		}
		w.ended = err.Error()
		return nil
	})
}

// loop is pick of grpc-go's pickerWrapper. asked counts the pickers as they were when one was asked
// last. then gets the connection, or the error.
func (w *world) loop(ctx context.Context, asked int, then func(*connection, error) steps) steps {
	return func() steps {
		w.blocked = func() bool {
			return !w.closed && (w.picker == nil || w.changed == asked) && !w.context.ended && !w.context.pin
		}
		if w.blocked() {
			return w.loop(ctx, asked, then)
		}
		w.blocked = nil
		switch {
		case w.closed:
			return then(nil, errClosing)
		case w.picker == nil || w.changed == asked:
			return then(nil, context.Canceled)
		}
		p, now := w.picker, w.changed
		return func() steps {
			r, err := w.ask(p, balancer.PickInfo{Ctx: ctx})
			if err == balancer.ErrNoSubConnAvailable {
				return w.loop(ctx, now, then)
			}
			if err != nil {
				return then(nil, err)
			}
			return func() steps {
				if c := w.subs[r.SubConn]; c.ready {
					return then(c, nil)
				}
				if r.Done != nil {
					known := w.channel.picker.Load()
					r.Done(balancer.DoneInfo{})
					if w.faults.stale {
						w.channel.picker.Store(known)
					}
				}
				return w.loop(ctx, now, then)
			}
		}
	}
}

// ask is p.Pick, with the faults.
func (w *world) ask(p *picker, info balancer.PickInfo) (balancer.PickResult, error) {
	own, _ := info.Ctx.Value(ownKey{}).(*pin)
	r, err := p.Pick(info)
	if own != nil {
		own.given = (own.given || w.faults.waits) && !w.faults.ends
	}
	return r, err
}

// contextEnds ends the call if its context has ended.
func (w *world) contextEnds() bool {
	if w.context.ended {
		w.ended = context.Canceled.Error()
	}
	return w.context.ended
}

// An event is a step of what happens besides the call. It can happen once its needs have, each
// the number of an event before it.
type event struct {
	name  string
	needs []int
	do    func(*world)
}

// publishes are the two steps of the policy's UpdateState, the first of which has the given number.
// Each needs the one before it.
func publishes(number int, p func(*world) balancer.Picker) []event {
	var before []int
	if number > 0 {
		before = []int{number - 1}
	}
	return []event{
		{"grpc-go has another picker", before, func(w *world) {
			w.picker = w.channel.newPicker(p(w))
			w.changed++
		}},
		{"the channel knows", []int{number}, func(w *world) { w.channel.replaced() }},
	}
}

// all is events in one step.
func all(name string, needs []int, events ...event) event {
	return event{name, needs, func(w *world) {
		for _, e := range events {
			e.do(w)
		}
	}}
}

func toNext(w *world) balancer.Picker { return chosen{sc: w.next} }
func toOld(w *world) balancer.Picker  { return chosen{sc: w.old} }
func toNone(*world) balancer.Picker   { return chosen{} }

// onlyForACall is the picker of a policy that connects when it is asked for a call.
func onlyForACall(w *world) balancer.Picker {
	return chosen{connect: func() {
		w.connects(w.old)
		all("", nil, publishes(0, toOld)...).do(w)
	}}
}

func loses(needs ...int) event {
	return event{"the old connection ends", needs, func(w *world) { w.of(w.old).ready = false }}
}

func cancels() event {
	return event{"the call is cancelled", nil, func(w *world) { w.context.ended = true }}
}

// hears tells the policy that the old SubConn is ready, or is not. It may come late, or never.
func hears(ready bool, needs ...int) event {
	return event{"the policy hears of the old SubConn", needs, func(w *world) { w.old.ready.Store(ready) }}
}

var orders = map[string]struct {
	events []event
	ends   string // how the call may end instead of being made
}{
	"a handover":                {events: append(publishes(0, toNext), loses(1), hears(false, 2))},
	"a policy that is closed":   {events: append(publishes(0, toNext), loses(0))},
	"shut down first":           {events: append([]event{loses()}, publishes(1, toNext)...)},
	"lost":                      {events: append([]event{loses(), hears(false, 0)}, publishes(2, toNext)...)},
	"connected only for a call": {events: append([]event{loses(), hears(false, 0)}, publishes(2, onlyForACall)...)},
	"connected again": {events: []event{
		loses(),
		all("the policy hears, and has another picker", []int{0}, append(publishes(0, toNone), hears(false))...),
		{"it is connected again", []int{1}, func(w *world) { w.connects(w.old) }},
		all("the policy has another picker", []int{2}, publishes(0, toOld)...),
	}},
	"connected again before the policy hears": {events: []event{
		{"it ends, and connects", nil, func(w *world) {
			w.connects(w.old)
			w.of(w.old).ready = false
		}},
		{"it is connected", []int{0}, func(w *world) { w.of(w.old).ready = true }},
		all("the policy hears, and has another picker", []int{0}, append(publishes(0, toNone), hears(false))...),
		all("the policy hears, and has another picker", []int{1, 2}, append(publishes(0, toOld), hears(true))...),
	}},
	"two pickers": {events: slices.Concat(publishes(0, toOld), publishes(2, toNext), []event{loses(3)})},
	"idle": {events: append([]event{
		{"grpc-go has no picker", nil, func(w *world) { w.picker = nil }}, loses(0),
	}, publishes(2, toNext)...)},
	"closed": {ends: errClosing.Error(), events: []event{
		{"grpc-go is closed", nil, func(w *world) { w.closed = true }}, loses(0),
	}},
	"cancelled":               {events: []event{loses(), cancels()}, ends: context.Canceled.Error()},
	"cancelled in a handover": {events: append(publishes(0, toNext), loses(1), cancels()), ends: context.Canceled.Error()},
}

// most is how many steps the call makes while nothing happens besides.
const most = 30

// explore runs every order. It returns how many there are, and what is wrong in the first one in which
// something is; "" if nothing is.
func explore(events []event, ends string, f faults) (n int, wrong string) {
	for chosen := []choice(nil); ; n++ {
		if chosen, wrong = run(chosen, events, ends, f); wrong != "" {
			return n, wrong
		}
		for len(chosen) > 0 && chosen[len(chosen)-1].taken+1 == chosen[len(chosen)-1].of {
			chosen = chosen[:len(chosen)-1]
		}
		if len(chosen) == 0 {
			return n + 1, ""
		}
		chosen[len(chosen)-1].taken++
	}
}

// A choice is which of several steps came next.
type choice struct{ taken, of int }

// run runs the order that begins with the given choices and goes on with the first step each time.
func run(chosen []choice, events []event, ends string, f faults) (all []choice, wrong string) {
	w := newWorld(f)
	happened := make([]bool, len(events))
	var story []string
	for at, still := 0, 0; w.call != nil; at++ {
		var next []int // events, or -1 for a step of the call
		if w.blocked == nil || !w.blocked() {
			next = append(next, -1)
		}
		for i, e := range events {
			if !happened[i] && !slices.ContainsFunc(e.needs, func(k int) bool { return !happened[k] }) {
				next = append(next, i)
			}
		}
		if len(next) == 0 {
			wrong = "the call waits for ever"
			break
		}
		if at == len(chosen) {
			chosen = append(chosen, choice{0, len(next)})
		}
		i := next[chosen[at].taken]
		if i >= 0 {
			events[i].do(w)
			happened[i], still = true, 0
			story = append(story, "\n  "+events[i].name)
			continue
		}
		if w.call = w.call(); still == most {
			wrong = "the call tries without end"
			break
		}
		still++
		story = append(story, ".")
	}
	if w.call == nil && w.got == nil && w.ended != ends {
		wrong = "the call fails: " + w.ended
	}
	if wrong != "" {
		wrong += ". Each dot is a step of the call:\n  " + strings.Join(story, "")
	}
	return chosen, wrong
}

// A call to an ordinary server is made, whatever happens to the connection that was picked for it.
func TestEveryOrderOfACallAndTheEndOfItsConnection(t *testing.T) {
	for name, o := range orders {
		t.Run(name, func(t *testing.T) {
			n, wrong := explore(o.events, o.ends, faults{})
			if wrong != "" {
				t.Fatal(wrong)
			}
			t.Logf("%d orders", n)
		})
	}
}

// The exploration finds mistakes.
func TestTheExplorationOfOrdersFindsFaults(t *testing.T) {
	for name, f := range map[string]faults{
		"a pin lets grpc-go wait for any picker": {waits: true}, "a pin never lets grpc-go wait": {ends: true},
		"the channel asks the same picker": {stale: true},
	} {
		t.Run(name, func(t *testing.T) {
			for in, o := range orders {
				if _, wrong := explore(o.events, o.ends, f); wrong != "" {
					t.Logf("%s: %s", in, wrong)
					return
				}
			}
			t.Error("no order shows the fault")
		})
	}
}
