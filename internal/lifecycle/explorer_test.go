package lifecycle

import (
	"errors"
	"fmt"
	"hash/maphash"
	"strings"
	"time"
)

// This file is built twice: into the tests, and with faults in the rules into a program (see package
// faulty). It needs only the standard library and the rules.
//
// A world is a model of two sides and the connection between them. What a side does is what a session of
// package mux does, or of package quic if the scene says so. All decisions are those of Life.

// A scene is what may happen to a connection.
type scene struct {
	name     string
	calls    [2]int    // how many calls each side makes
	limits   [2]Limits // the second side has accepted the connection
	owners   [2][]act  // what the owner of each side does at any time
	starts   bool      // owners may act before their side has started
	breaks   bool      // the connection may be lost
	hangs    bool      // handlers do not return until they are cancelled
	deaf     bool      // the first side takes nothing
	fins     bool      // sides tell each other that they are Finished, as over QUIC
	oneWay   bool      // the first side is a client of HTTP/1.1: it makes one call at a time and never drains
	allow    time.Duration
	ticks    int8 // how often some time may pass without a timer
	mustStay bool // nothing ends the connection
	mustEnd  bool // the connection ends by itself
	keeps    bool // no call is lost
}

// An act is what the owner of a side does.
type act byte

const (
	stops   act = iota // StopAccepting
	retires            // Retire
	cuts               // End
)

const (
	client = iota
	server
	patience = 20 * time.Second
	most     = 2 // calls of each side
)

func with(l Limits) [2]Limits {
	l.Accepted = true
	if l.Patience == 0 {
		l.Patience = patience
	}
	return [2]Limits{{Patience: patience}, l}
}

var (
	mutual = [2]int{1, 1}
	pinged = [2]Limits{{Patience: patience, Keepalive: Keepalive{Every: 30 * time.Second, Timeout: 20 * time.Second}}, {Accepted: true, Patience: patience}}
)

var scenes = []scene{
	{name: "calls alone", calls: mutual, limits: with(Limits{}), mustStay: true},
	{name: "a server that stops", calls: [2]int{2, 0}, limits: with(Limits{}), owners: [2][]act{nil, {stops}}},
	{name: "a server that stops, and calls", calls: mutual, limits: with(Limits{}), owners: [2][]act{nil, {stops}}},
	{name: "a client that stops accepting", calls: mutual, limits: with(Limits{}), owners: [2][]act{{stops}, nil}, mustStay: true},
	{name: "both stop", calls: mutual, limits: with(Limits{}), owners: [2][]act{{stops}, {stops}}},
	{name: "a client that retires", calls: mutual, limits: with(Limits{}), owners: [2][]act{{retires}, nil}},
	{name: "both retire", calls: mutual, limits: with(Limits{}), owners: [2][]act{{retires}, {retires}}},
	{name: "a client that closes", calls: mutual, limits: with(Limits{}), owners: [2][]act{{cuts}, nil}},
	{name: "a server that stops and then closes", calls: mutual, limits: with(Limits{}), owners: [2][]act{nil, {stops, cuts}}},
	{name: "a server that closes beside a client that retires", calls: [2]int{1, 0}, limits: with(Limits{}), owners: [2][]act{{retires}, {cuts}}},
	{name: "a server that stops before it starts", calls: [2]int{1, 0}, limits: with(Limits{}), owners: [2][]act{nil, {stops}}, starts: true},
	{name: "sides that retire or close before they start", limits: with(Limits{}), owners: [2][]act{{retires}, {cuts}}, starts: true},
	{name: "a lost connection", calls: mutual, limits: with(Limits{}), owners: [2][]act{nil, {stops}}, breaks: true},
	{name: "an idle connection", calls: [2]int{2, 0}, limits: with(Limits{Idle: 10 * time.Second}), ticks: 2, mustEnd: true},
	{name: "an old connection", calls: mutual, limits: with(Limits{Age: 30 * time.Second}), mustEnd: true},
	{name: "an old connection with a grace", calls: mutual, limits: with(Limits{Age: 30 * time.Second, Grace: 10 * time.Second}), hangs: true},
	{name: "an old and idle connection", calls: [2]int{1, 0}, limits: with(Limits{Age: 30 * time.Second, Idle: 10 * time.Second, Grace: -1})},
	{name: "a client that takes nothing", calls: [2]int{1, 0}, limits: with(Limits{}), owners: [2][]act{nil, {stops, cuts}}, deaf: true, hangs: true},
	{name: "an idle client that takes nothing", limits: with(Limits{}), owners: [2][]act{nil, {stops}}, deaf: true},
	{name: "a peer that is dead", calls: [2]int{0, 1}, limits: [2]Limits{{}, {Accepted: true, Patience: patience, Keepalive: Keepalive{Every: 30 * time.Second, Timeout: 20 * time.Second, WithoutCalls: true}}}, deaf: true, mustEnd: true},
	{name: "a client that pings", calls: [2]int{2, 0}, limits: pinged, allow: 50 * time.Second},
	{name: "a client that pings without calls", calls: [2]int{1, 0}, limits: [2]Limits{{Patience: patience, Keepalive: Keepalive{Every: 30 * time.Second, Timeout: 40 * time.Second, WithoutCalls: true}}, {Accepted: true, Patience: patience}}, allow: 50 * time.Second},
	{name: "a server that stops, over QUIC", calls: mutual, limits: with(Limits{}), owners: [2][]act{nil, {stops}}, fins: true},
	{name: "both retire, over QUIC", calls: mutual, limits: with(Limits{}), owners: [2][]act{{retires}, {retires}}, fins: true},
	{name: "a client that closes, over QUIC", calls: mutual, limits: with(Limits{}), owners: [2][]act{{cuts}, {stops}}, fins: true},
	{name: "an idle connection of HTTP/1.1", calls: [2]int{2, 0}, limits: with(Limits{OneWay: true, Idle: 10 * time.Second, Age: 30 * time.Second, Grace: 10 * time.Second}), oneWay: true},
	{name: "an old connection of HTTP/1.1", calls: [2]int{2, 0}, limits: with(Limits{OneWay: true, Age: 30 * time.Second}), oneWay: true, keeps: true},
	{name: "a server of HTTP/1.1 that stops and then closes", calls: [2]int{2, 0}, limits: with(Limits{OneWay: true}), owners: [2][]act{nil, {stops, cuts}}, oneWay: true},
}

var (
	errOwner = errors.New("the owner ends it")
	errPeer  = errors.New("the peer ends it")
	errLost  = errors.New("the connection was lost")
)

// A moment is a Clock that shows one time.
type moment struct{ t time.Time }

func (m moment) Now() time.Time { return m.t }

var epoch = time.Unix(1_000_000, 0)

// A message is on its way to a side. n is the number of its call, or the last call for a drain.
type message struct {
	kind kind
	n    int8
}

type kind int8

const (
	nothing kind = iota
	head
	reply
	stop  // of the caller: the call is cancelled
	reset // of the callee: the call has failed
	drains
	ping
	pong
	ask // the PING that follows an announcement
	answer
	bye
	fin // as over QUIC: the sender is Finished
	eof // the sender has closed the connection
)

const all = most + 1 // in a drain: no call is refused

// A fate is what has happened to a call, as its caller sees it.
type fate int8

const (
	unmade fate = iota
	open
	answered
	refused // the peer has not handled it
	failed
)

type side struct {
	life     Life
	started  bool
	made     int8
	awaited  int8 // the peer's last call and one, if it has answered the announcement
	own      [most]fate
	handlers [most]fate // of the peer's calls: open, answered, failed
	seen     int8       // the last call of the peer
	head     int8       // over HTTP/1.1: the head of the answer was sent, and says (2) that the connection ends, or not (1)
	acts     int8       // of the owner
	finish   bool       // the session has no call left, and will end
	expire   bool       // the session will end for a timer
	why      error      // this timer's
	saidBye  bool       // bye, or fin
	closed   bool
	asked    bool // a PING or announcement waits for its answer
	heard    bool // something has arrived since the last PING
	pingAt   time.Time
	lastCall time.Time // when the last call ended, or the side started
}

type world struct {
	sides [2]side
	pipe  [2][12]message
	lens  [2]int8
	now   time.Time
	ticks int8
	late  int8 // how often time has passed while something else could happen
	cut   bool // calls may fail: an owner has closed, the connection was lost, a timer has ended calls
	ends  bool // something asks for the connection's end
	gone  bool // a side has refused calls of a peer that was late to answer
}

type explorer struct {
	scene
	quiet bool // nothing but the time can move
	wrong string
}

func (x *explorer) fault(format string, args ...any) {
	if x.wrong == "" {
		x.wrong = fmt.Sprintf(format, args...)
	}
}

func (x *explorer) begin() world {
	w := world{now: epoch}
	for i := range w.sides {
		s := &w.sides[i]
		s.life.Limits = x.limits[i]
		s.life.Clock = moment{w.now}
		s.life.PeerAllows(x.allow, 2*x.allow)
		if !x.starts {
			x.start(&w, i)
		}
	}
	return w
}

func (x *explorer) start(w *world, i int) {
	w.sides[i].lastCall, w.sides[i].started = w.now, true
	x.do(w, i, w.sides[i].life.Start(i == server || !x.oneWay))
}

// send puts a message on its way to the other side.
func (x *explorer) send(w *world, from int, m message) {
	to := 1 - from
	if w.sides[from].closed || !w.sides[from].started && m.kind != eof {
		return
	}
	if int(w.lens[to]) == len(w.pipe[to]) {
		x.fault("too many messages are on their way")
		return
	}
	w.pipe[to][w.lens[to]] = m
	w.lens[to]++
}

// do is what a session does.
func (x *explorer) do(w *world, i int, t Task) {
	s := &w.sides[i]
	if t&Announce != 0 {
		s.asked = true
		x.send(w, i, message{drains, all})
		x.send(w, i, message{kind: ask})
	}
	if t&RefusePeer != 0 && !x.oneWay { // otherwise the answer says it
		x.send(w, i, message{drains, s.seen})
	}
	if t&Ping != 0 {
		between := x.allow
		if s.life.calls == 0 {
			between *= 2
		}
		if !s.pingAt.IsZero() && w.now.Sub(s.pingAt) < between {
			x.fault("side %d sends a PING after %v", i, w.now.Sub(s.pingAt))
		}
		if !s.life.Keepalive.WithoutCalls && s.life.calls == 0 {
			x.fault("side %d sends a PING without a call", i)
		}
		s.asked, s.heard, s.pingAt = true, false, w.now
		x.send(w, i, message{kind: ping})
	}
	switch {
	case t&EndCalls != 0:
		x.endCalls(w, i)
	case t&Finish != 0 && s.life.Reason() == nil:
		for n := range s.handlers {
			if s.handlers[n] == open || s.own[n] == open {
				x.fault("side %d is finished while call %d is open", i, n)
			}
		}
		s.finish = true
		if x.oneWay {
			x.close(w, i)
		}
	}
	if t&(Expire|Lost) != 0 {
		s.expire, s.why = true, ErrOld
		if t&Lost != 0 {
			s.why = ErrDead
			if s.heard || !s.asked {
				x.fault("side %d gives up a peer that it has heard", i)
			}
		}
	}
	if t&Close != 0 {
		for _, m := range w.pipe[i] {
			if (m.kind == head || m.kind == reply) && x.fins && !w.cut && !w.gone {
				x.fault("side %d closes, and has not read everything", i)
			}
		}
		x.close(w, i)
	}
	if s.life.State() >= Finished && !s.saidBye && (s.life.Reason() != nil || x.fins) {
		s.saidBye = true
		if x.fins {
			x.send(w, i, message{kind: fin})
		} else {
			x.send(w, i, message{kind: bye})
		}
	}
}

// endCalls ends all calls of a side.
func (x *explorer) endCalls(w *world, i int) {
	s := &w.sides[i]
	for n := range s.own {
		if s.own[n] == open {
			s.own[n] = failed
			if x.fins { // nothing else tells the peer
				x.send(w, i, message{stop, int8(n) + 1})
			}
			x.callEnds(w, i)
		}
	}
	for n := range s.handlers {
		if s.handlers[n] == open {
			s.handlers[n] = failed
			if x.fins {
				x.send(w, i, message{reset, int8(n) + 1})
			}
			x.callEnds(w, i)
		}
	}
}

func (x *explorer) callEnds(w *world, i int) {
	w.sides[i].lastCall = w.now
	x.do(w, i, w.sides[i].life.CallEnds())
}

// close closes the connection at one side.
func (x *explorer) close(w *world, i int) {
	if w.sides[i].closed {
		return
	}
	x.send(w, i, message{kind: eof})
	w.sides[i].closed = true
	w.lens[i], w.pipe[i] = 0, [12]message{}
	x.end(w, i, errLost, true)
	x.do(w, i, w.sides[i].life.Closes())
}

func (x *explorer) end(w *world, i int, reason error, lost bool) {
	x.do(w, i, w.sides[i].life.End(reason, lost))
}

// receive handles a message on its way to a side.
func (x *explorer) receive(w *world, i, at int) {
	m := w.pipe[i][at]
	copy(w.pipe[i][at:], w.pipe[i][at+1:])
	w.lens[i]--
	w.pipe[i][w.lens[i]] = message{}
	s := &w.sides[i]
	s.heard = true
	s.life.Hears(w.now)
	if m.kind == eof {
		x.close(w, i)
		return
	}
	if s.life.Reason() != nil && m.kind != bye && m.kind != fin {
		return // it handles no more input
	}
	switch m.kind {
	case head:
		s.seen = max(s.seen, m.n)
		if s.life.Drain() == Refusing {
			return
		}
		s.handlers[m.n-1] = open
		x.do(w, i, s.life.CallBegins())
		x.answers(w, i)
	case reply:
		if s.own[m.n-1] == open {
			s.own[m.n-1] = answered
			x.callEnds(w, i)
		}
	case reset:
		if s.own[m.n-1] == open {
			s.own[m.n-1] = failed
			x.callEnds(w, i)
		}
	case stop:
		if s.handlers[m.n-1] == open {
			s.handlers[m.n-1] = failed
			x.callEnds(w, i)
		}
	case drains:
		x.do(w, i, s.life.PeerDrains(errPeer))
		for n := range s.own {
			if s.own[n] == open && int8(n) >= m.n {
				s.own[n] = refused
				x.callEnds(w, i)
			}
		}
	case ping:
		x.send(w, i, message{kind: pong})
	case pong:
		s.asked = false
	case ask:
		x.send(w, i, message{answer, s.made})
	case answer:
		s.awaited = m.n + 1
		x.answers(w, i)
	case fin:
		x.do(w, i, s.life.PeerFinishes(errPeer))
	case bye:
		x.end(w, i, errPeer, false)
		x.close(w, i)
	}
}

// answers tells a side that the peer has answered, once the calls have arrived that the peer had made.
func (x *explorer) answers(w *world, i int) {
	if s := &w.sides[i]; s.awaited > 0 && s.seen >= s.awaited-1 {
		x.do(w, i, s.life.PeerAnswers())
	}
}

// receives delivers the next frame of a call to side i or, if ofCall is false, the next frame of the
// connection. Over QUIC the two kinds overtake each other.
func receives(x *explorer, w *world, i int, ofCall bool) bool {
	if w.sides[i].closed || !w.sides[i].started || x.deaf && i == client {
		return false
	}
	for at, m := range w.pipe[i] {
		if m.kind != nothing && (m.kind <= reset) == ofCall {
			if at > 0 && !x.fins {
				return false
			}
			x.receive(w, i, at)
			return true
		}
	}
	return false
}

// Time may pass while something else can happen, as it does for a slow side or network, but only
// maxLate times.
const (
	someTime   = "lets some time pass"
	timePasses = "sees its timer fire"
	maxLate    = 2
)

// A step is something that may happen next. It reports whether it can.
type step struct {
	name string
	do   func(x *explorer, w *world, i int) bool
}

var steps = []step{
	{"starts", func(x *explorer, w *world, i int) bool {
		if w.sides[i].started {
			return false
		}
		x.start(w, i)
		return true
	}},
	{"calls", func(x *explorer, w *world, i int) bool {
		s := &w.sides[i]
		if int(s.made) == x.calls[i] || s.life.Refusal() != nil || s.life.State() == Opening {
			return false
		}
		if x.oneWay && s.life.calls > 0 {
			return false
		}
		s.own[s.made] = open
		s.made++
		x.do(w, i, s.life.CallBegins())
		x.send(w, i, message{head, s.made})
		return true
	}},
	{"returns", func(x *explorer, w *world, i int) bool {
		s := &w.sides[i]
		for n := range s.handlers {
			if s.handlers[n] == open && !x.hangs && (!x.oneWay || s.head > 0) {
				s.handlers[n] = answered
				if s.head == 2 {
					x.send(w, i, message{drains, all})
				}
				s.head = 0
				x.send(w, i, message{reply, int8(n) + 1})
				x.callEnds(w, i)
				return true
			}
		}
		return false
	}},
	{"sends the head of an answer", func(x *explorer, w *world, i int) bool {
		s := &w.sides[i]
		if !x.oneWay || s.head > 0 || s.handlers[0] != open && s.handlers[1] != open {
			return false
		}
		x.do(w, i, s.life.PeerAnswers())
		if s.head = 1; s.life.Drain() == Refusing {
			s.head = 2
		}
		return true
	}},
	{"receives of a call", func(x *explorer, w *world, i int) bool { return receives(x, w, i, true) }},
	{"receives", func(x *explorer, w *world, i int) bool { return receives(x, w, i, false) }},
	{"acts", func(x *explorer, w *world, i int) bool {
		s := &w.sides[i]
		if int(s.acts) == len(x.owners[i]) {
			return false
		}
		a := x.owners[i][s.acts]
		s.acts++
		w.ends = w.ends || a != stops || i == server
		switch a {
		case stops:
			x.do(w, i, s.life.StopAccepting())
		case retires:
			x.do(w, i, s.life.Retire())
		case cuts:
			w.cut = true
			x.end(w, i, errOwner, false)
		}
		return true
	}},
	{"ends because no call is left", func(x *explorer, w *world, i int) bool {
		s := &w.sides[i]
		if !s.finish || s.life.Reason() != nil || x.fins {
			return false
		}
		x.end(w, i, s.life.Leaving(), false)
		return true
	}},
	{"ends for a timer", func(x *explorer, w *world, i int) bool {
		s := &w.sides[i]
		if !s.expire || s.life.Reason() != nil {
			return false
		}
		w.cut = true
		x.end(w, i, s.why, s.why == ErrDead)
		return true
	}},
	{"loses the connection", func(x *explorer, w *world, i int) bool {
		if !x.breaks || i == server || w.sides[0].closed && w.sides[1].closed {
			return false
		}
		w.cut, w.ends = true, true
		for i := range w.sides {
			x.close(w, i)
		}
		return true
	}},
	{someTime, func(x *explorer, w *world, i int) bool {
		const some = 3 * time.Second
		for k := range w.sides {
			if at := w.sides[k].life.Next(); !at.IsZero() && at.Sub(w.now) <= some {
				return false
			}
		}
		if w.ticks == x.ticks || i == server {
			return false
		}
		w.ticks++
		w.now = w.now.Add(some)
		return true
	}},
	{timePasses, func(x *explorer, w *world, i int) bool {
		s := &w.sides[i]
		at := s.life.Next()
		if other := w.sides[1-i].life.Next(); at.IsZero() || !other.IsZero() && other.Before(at) {
			return false
		}
		if at.After(w.now) {
			w.now = at
		}
		for k := range w.sides {
			w.sides[k].life.Clock = moment{w.now}
		}
		was, calls, closing := s.life.Refusal(), s.life.calls, s.life.State() >= Ending
		serving := s.handlers[0] == open || s.handlers[1] == open
		before := s.life.Drain()
		do := s.life.Fire(serving)
		if s.life.Leaving() != nil || do&Lost != 0 {
			w.ends = true
		}
		if was == nil && s.life.Refusal() == ErrIdle && (calls > 0 || w.now.Sub(s.lastCall) < s.life.Idle) {
			x.fault("side %d is idle with %d calls, %v after the last one", i, calls, w.now.Sub(s.lastCall))
		}
		if before == Announced && serving && s.life.Drain() == Refusing && w.now.Sub(s.life.announcedAt) < MaxDraining {
			x.fault("side %d refuses calls early, while it serves", i)
		}
		if before == Announced && s.life.Drain() == Refusing {
			w.gone = true
		}
		if closing && do&Close != 0 { // the peer takes nothing
			w.cut = true
			if x.quiet && !x.deaf {
				x.fault("side %d waits for a peer that has taken everything", i)
			}
		}
		x.do(w, i, do)
		return true
	}},
}

// check looks for what must not be.
func (x *explorer) check(w *world, last bool) {
	for i := range w.sides {
		s, peer := &w.sides[i], &w.sides[1-i]
		for n, f := range s.own {
			switch {
			case f == failed && !w.cut && (!x.oneWay || x.keeps): // else a request may cross the end
				x.fault("call %d of side %d fails, and nothing has ended it", n+1, i)
			case f == refused && !w.cut && !w.gone && !x.oneWay:
				x.fault("call %d of side %d is refused, and was made before the drain was announced", n+1, i)
			case f == refused && peer.handlers[n] != unmade:
				x.fault("call %d of side %d is refused, and a handler has it", n+1, i)
			}
		}
		switch {
		case s.life.State() >= Ending && !w.ends && !w.cut:
			x.fault("side %d ends, and nothing asks for it", i)
		case last && s.life.State() < Closed && (x.mustEnd || w.ends || s.life.State() >= Ending || s.life.Leaving() != nil) && !(x.deaf && i == client) && !x.keeps:
			x.fault("side %d stays for ever in state %d", i, s.life.State())
		case last && x.mustStay && s.life.State() != Open:
			x.fault("side %d has ended", i)
		case s.closed && !s.life.Next().IsZero():
			x.fault("a timer of side %d runs after the end", i)
		}
	}
}

// relative returns w with its times relative to now, and without those that no rule will read, so that
// worlds that differ only in these are the same.
func (w world) relative() world {
	const past = -10 * time.Minute
	shift := func(t *time.Time) {
		if !t.IsZero() {
			*t = epoch.Add(max(t.Sub(w.now), past))
		}
	}
	for i := range w.sides {
		s := &w.sides[i]
		l := &s.life
		if l.drain != Announced {
			l.announcedAt = time.Time{}
		}
		if l.Idle == 0 || l.state > Open {
			l.idleSince, s.lastCall = time.Time{}, time.Time{}
		}
		if l.Keepalive.Every == 0 || l.state > Open {
			l.pinging, s.heard, s.asked, s.pingAt = pinging{}, false, false, time.Time{}
		}
		for _, t := range []*time.Time{&l.announcedAt, &l.idleSince, &l.pinging.heardAt, &l.pinging.pingSentAt, &s.pingAt, &s.lastCall} {
			shift(t)
		}
		for k := range l.due {
			shift(&l.due[k])
		}
		l.Clock = moment{epoch}
	}
	w.now = epoch
	return w
}

// explore visits all worlds that the scene can lead to, and returns their number.
func (x *explorer) explore() int {
	type visit struct {
		world
		from int
		step string
	}
	seed := maphash.MakeSeed()
	known := map[uint64]bool{}
	visits := []visit{{world: x.begin().relative(), from: -1}}
	known[maphash.Comparable(seed, visits[0].world)] = true
	for at := 0; at < len(visits) && x.wrong == ""; at++ {
		last, waits := true, false
		for k := range 2 * len(steps) {
			step, i := steps[k/2], k%2
			w := visits[at].world
			x.quiet = !waits
			if step.name == timePasses && waits {
				if w.late++; w.late > maxLate {
					continue
				}
			}
			if !step.do(x, &w, i) {
				continue
			}
			last, waits = false, waits || step.name != timePasses && step.name != someTime
			w = w.relative()
			x.check(&w, false)
			if key := maphash.Comparable(seed, w); !known[key] || x.wrong != "" {
				known[key] = true
				visits = append(visits, visit{w, at, fmt.Sprintf("side %d %s", i, step.name)})
			}
			if x.wrong != "" {
				at = len(visits) - 1
				break
			}
		}
		if last && x.wrong == "" {
			x.check(&visits[at].world, true)
		}
		if x.wrong != "" {
			var way []string
			for k := at; visits[k].from >= 0; k = visits[k].from {
				way = append([]string{visits[k].step}, way...)
			}
			x.wrong += ": " + strings.Join(way, ", ")
		}
	}
	return len(visits)
}

// Find explores a scene, or all of them if its name is empty. It returns the number of worlds, and what
// is wrong in one of them.
func Find(name string) (worlds int, wrong string) {
	for _, s := range scenes {
		if name != "" && name != s.name {
			continue
		}
		x := &explorer{scene: s}
		n := x.explore()
		worlds += n
		if x.wrong != "" {
			return worlds, s.name + ": " + x.wrong
		}
	}
	return worlds, ""
}
