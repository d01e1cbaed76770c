package shm

import (
	"bytes"
	"fmt"
	"iter"
	"strings"
)

// This file is built twice: into the tests, and with faults in ring.go into a program
// (see package faulty). Besides the standard library it must need only
// ring.go and norace.go.

// A scene is what a sender writes and how a receiver reads it, over a ring of the given
// length, as a Conn's Write and Read do.
type scene struct {
	ring   int
	writes []int // bytes of each write
	read   int   // bytes of each read
}

func (s scene) String() string {
	return fmt.Sprintf("writes of %v bytes, reads of %d, a ring of %d", s.writes, s.read, s.ring)
}

// scenes are small, and together reach every step: a ring that fills exactly, in pieces, or
// not at all; one that wraps around; consecutive sleeps on both sides.
var scenes = []scene{
	{ring: 8, writes: []int{1, 1}, read: 8},
	{ring: 8, writes: []int{1, 1, 1}, read: 8},
	{ring: 4, writes: []int{3, 3}, read: 2},
	{ring: 4, writes: []int{4, 4}, read: 4},
	{ring: 4, writes: []int{6}, read: 4},
	{ring: 2, writes: []int{3}, read: 1},
	{ring: 2, writes: []int{5}, read: 2},
	{ring: 4, writes: []int{2, 4}, read: 3},
}

// A result is the outcome of exploring a scene.
type result struct {
	states        int
	interleavings float64
	fault         string // what went wrong, and the steps that led to it
}

// Find explores the scene with this name, or all if it is empty, until one shows a fault.
func Find(scene string) (states int, fault string) {
	for _, sc := range scenes {
		if scene != "" && scene != sc.String() {
			continue
		}
		r := explore(sc)
		states += r.states
		if r.fault != "" {
			return states, r.fault
		}
	}
	return states, ""
}

// explore runs all interleavings of a scene. A run that reaches a state that was seen
// before stops there, as what follows is known.
//
// What an actor does depends only on what it has read. So its variables at some point, and
// what it has read since, determine the rest. A state is that of both actors, and the
// memory.
func explore(sc scene) result {
	type node struct {
		key    string
		choice int // the actor that takes the next step
		paths  float64
	}
	var (
		stack []node
		seen  = make(map[string]float64) // the number of interleavings that follow from a state
	)
	for {
		w := newWorld(sc)
		for i := range stack {
			w.step(stack[i].choice)
		}
		// Run to the end, or to a known state.
		var follow float64
		for {
			if w.wrong == "" && !w.runnable(0) && !w.runnable(1) {
				if w.actors[0].over && w.actors[1].over {
					follow = 1
					break
				}
				w.wrong = "a wake-up is lost: nobody goes on"
			}
			if w.wrong != "" {
				w.stop()
				return result{states: len(seen), fault: fmt.Sprintf("%v: %s\n%s", sc, w.wrong, w.story())}
			}
			key := w.key()
			if n, ok := seen[key]; ok {
				follow = n
				break
			}
			first := 0
			if !w.runnable(0) {
				first = 1
			}
			stack = append(stack, node{key: key, choice: first})
			w.step(first)
		}
		// Go back to the last step with another choice.
		for {
			if len(stack) == 0 {
				w.stop()
				return result{states: len(seen), interleavings: follow}
			}
			top := &stack[len(stack)-1]
			top.paths += follow
			if top.choice == 0 && w.couldAt(len(stack)-1) {
				top.choice = 1
				break
			}
			seen[top.key] = top.paths
			follow = top.paths
			stack = stack[:len(stack)-1]
		}
		w.stop()
	}
}

// A world is one run.
type world struct {
	scene
	ringBytes []byte
	words     [4]uint64 // tail, head, asleep, wants
	tokens    [2]byte   // unread wake-ups, for data and for room
	actors    [2]*actor
	could     []bool // for each step, whether both actors could have taken it
	trace     []deed
	wrong     string
	got       int // bytes received
}

// An actor is a goroutine that runs one step at a time, up to its next operation on shared
// state.
type actor struct {
	w       *world
	name    string
	next    func() (string, bool)
	stop    func()
	yield   func(string) bool
	history []byte
	does    string // its next operation
	needs   *byte  // the wake-ups that it waits for; nil if it does not wait
	over    bool
}

// stopped is the panic that ends an actor early.
type stopped struct{}

func newWorld(sc scene) *world {
	w := &world{scene: sc, ringBytes: make([]byte, sc.ring)}
	w.start(0, "sender", w.send)
	w.start(1, "receiver", w.receive)
	return w
}

func (w *world) start(i int, name string, run func(*actor)) {
	a := &actor{w: w, name: name}
	a.next, a.stop = iter.Pull(iter.Seq[string](func(yield func(string) bool) {
		defer func() {
			switch v := recover(); v.(type) {
			case nil, stopped:
			default:
				w.wrong = fmt.Sprintf("the %s panics: %v", name, v)
			}
		}()
		a.yield = yield
		run(a)
	}))
	w.actors[i] = a
	a.goOn()
}

func (a *actor) goOn() {
	does, ok := a.next()
	a.does, a.over = does, !ok
}

func (w *world) stop() {
	for _, a := range w.actors {
		a.stop()
	}
}

func (w *world) runnable(i int) bool {
	a := w.actors[i]
	return !a.over && (a.needs == nil || *a.needs > 0)
}

func (w *world) step(i int) {
	w.could = append(w.could, w.runnable(0) && w.runnable(1))
	a := w.actors[i]
	w.trace = append(w.trace, deed{i, a.does, 0})
	a.goOn()
}

func (w *world) couldAt(step int) bool { return w.could[step] }

// A deed is what one actor did in one step.
type deed struct {
	actor int
	does  string
	v     byte // the value that was loaded or stored, or the number of wake-ups
}

// story lists the steps, in a column for each actor.
func (w *world) story() string {
	var b strings.Builder
	for _, d := range w.trace {
		fmt.Fprintf(&b, "\t%*s%s %d\n", 30*d.actor, "", d.does, d.v)
	}
	return b.String()
}

func (w *world) key() string {
	b := make([]byte, 0, 64)
	for _, v := range w.words {
		b = append(b, byte(v))
	}
	b = append(b, w.tokens[:]...)
	b = append(b, w.ringBytes...)
	b = append(b, byte(len(w.actors[0].history)))
	b = append(b, w.actors[0].history...)
	return string(append(b, w.actors[1].history...))
}

// before lets the other actor run first.
func (a *actor) before(does string) {
	if !a.yield(does) {
		panic(stopped{})
	}
}

// did records the value that an operation on shared state has read or written.
func (a *actor) did(v byte) {
	a.history = append(a.history, v)
	a.w.trace[len(a.w.trace)-1].v = v
}

// knows replaces the actor's history with its variables, which determine what it does from
// here on, apart from what it reads.
func (a *actor) knows(all ...uint64) {
	a.history = a.history[:0]
	for _, v := range all {
		a.history = append(a.history, byte(v))
	}
}

// A stepping word yields before each load and store, and a cursor also after its store: a
// change of the ring's bytes after that is another step.
type stepping struct {
	*actor
	name   string
	cursor bool
	v      *uint64
}

func (s stepping) Load() uint64 {
	s.before("loads " + s.name)
	s.did(byte(*s.v))
	return *s.v
}

func (s stepping) Store(v uint64) {
	s.before("stores " + s.name)
	*s.v = v
	s.did(byte(v))
	if s.cursor {
		s.before("has stored " + s.name)
		s.did(byte(v))
	}
}

func (a *actor) word(i int) word {
	return stepping{a, []string{"tail", "head", "asleep", "wants"}[i], i < 2, &a.w.words[i]}
}

func (a *actor) ring(wake int) {
	a.before([]string{"wakes for data", "wakes for room"}[wake])
	a.w.tokens[wake]++
	a.did(a.w.tokens[wake])
}

// wait waits for wake-ups, and returns their number.
func (a *actor) wait(wake int) int {
	a.needs = &a.w.tokens[wake]
	a.before([]string{"waits for data", "waits for room"}[wake])
	a.needs = nil
	n := a.w.tokens[wake]
	a.did(n)
	a.w.tokens[wake] = 0
	return int(n)
}

// woke fails for the error of a wake-up, and after too many wake-ups in a row for nothing.
func (a *actor) woke(err error, vain int) {
	if err != nil {
		a.fails(err)
	}
	if vain > 2 {
		a.fails(fmt.Errorf("it is woken for nothing %d times in a row", vain))
	}
}

func (a *actor) fails(err error) {
	a.w.wrong = fmt.Sprintf("the %s fails: %v", a.name, err)
	panic(stopped{})
}

// sent returns the bytes that are written between two offsets.
func sent(from, to int) []byte {
	b := make([]byte, 0, to-from)
	for i := from; i < to; i++ {
		b = append(b, byte(i+1))
	}
	return b
}

func (w *world) total() (n int) {
	for _, l := range w.writes {
		n += l
	}
	return n
}

// send does what consecutive calls of Write do.
func (w *world) send(a *actor) {
	s := sender{ring: w.ringBytes, tail: a.word(0), head: a.word(1), asleep: a.word(2), wants: a.word(3)}
	from := 0
	for _, n := range w.writes {
		b := sent(from, from+n)
		from += n
		for vain := 0; ; {
			a.knows(uint64(from), uint64(len(b)), s.sent, s.received, s.waits, s.wakeUpFor, s.wakeUps, uint64(vain))
			n, err := s.put(b)
			if err != nil {
				a.fails(err)
			}
			if n > 0 {
				vain = 0
			}
			b = b[n:]
			if n > 0 && s.publish() {
				a.ring(0)
			}
			if len(b) == 0 {
				break
			}
			waits, err := s.startWaiting()
			if err != nil {
				a.fails(err)
			}
			a.woke(nil, vain)
			if waits {
				a.woke(s.wokenBy(a.wait(1)), 0)
				vain++
			}
		}
	}
}

// receive does what Read does, until all bytes have arrived.
func (w *world) receive(a *actor) {
	r := receiver{ring: w.ringBytes, tail: a.word(0), head: a.word(1), asleep: a.word(2), wants: a.word(3)}
	b := make([]byte, w.read)
	vain := 0
	for w.got < w.total() {
		a.knows(uint64(w.got), r.received, r.sent, r.sleeps, r.wakeUpFor, r.wakeUps, uint64(vain))
		n, wanted, err := r.read(b)
		if err != nil {
			a.fails(err)
		}
		if want := sent(w.got, w.got+n); !bytes.Equal(b[:n], want) {
			a.fails(fmt.Errorf("%v arrives, and should be %v", b[:n], want))
		}
		w.got += n
		if wanted {
			a.ring(1)
		}
		if n > 0 {
			vain = 0
			continue
		}
		a.woke(nil, vain)
		sleeps, err := r.startSleeping()
		if err != nil {
			a.fails(err)
		}
		if sleeps {
			a.woke(r.wokenBy(a.wait(0)), 0)
			vain++
		}
	}
}
