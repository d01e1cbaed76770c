// Package lifecycle decides how a connection lives and ends. Its rules are pure functions: they use no
// connection, goroutine, timer or lock. A method of [Life] changes a small value and says what the
// connection has to do. Each transport calls them with its session's lock held, and explorer_test.go
// calls them for two sides of a connection, in every order of steps.
package lifecycle

import (
	"errors"
	"time"
)

// A Life is the life of one side of a connection, from its handshake to its end. A side makes calls to
// its peer, and accepts calls of its peer. Both directions end separately, and then the connection:
//
//	Opening → Open → Ending → Finished → Closed
//
// A side may leave out Ending, and be Closed from any state. It makes calls in Opening and Open, until
// something tells it to refuse them. How far it is with its peer's calls is its [Drain].
//
// Invariants:
//   - An Open side is Finished only if it leaves, no call is left, and no call of the peer can be on its
//     way, because the peer has answered the announcement of the drain or was too late to answer.
//   - A side that leaves is Finished at last: when its calls have ended and the drain is over.
//   - A side accepts each call that arrives before the peer's answer. The peer makes no call after it.
//   - A side that is Ending or Finished is Closed at last, even if the peer takes nothing.
//   - Each [Task] but Ping, Close and SetTimer is given once.
type Life struct {
	Limits

	// Clock tells the time.
	Clock Clock

	state        State
	drain        Drain
	accepts      bool  // this side accepts calls until it drains; known once it has started
	refusal      error // why this side makes no more calls; nil while it does
	leaving      error // why the connection ends when no call is left; nil if it does not
	reason       error // why all calls were ended; nil until then
	peerFinished bool  // the peer has no call left, and makes none
	calls        int   // open calls of both directions
	announcedAt  time.Time
	idleSince    time.Time
	pinging      pinging
	due          [timers]time.Time // when each timer fires; zero if it does not run
}

// Limits say how long the parts of a life may last.
type Limits struct {
	Accepted bool // this side has accepted the connection: if it drains, the connection ends
	OneWay   bool // the peer is a client of HTTP/1.1: it makes one call after the other, accepts none, and learns from an answer that this side drains

	Idle      time.Duration // how long the connection may be without calls; 0 for any time
	Age       time.Duration // after this time the connection drains; 0 for never
	Grace     time.Duration // after this time more it is closed; 0 for never, negative for no time
	Patience  time.Duration // how long a peer may take nothing at the end, or not answer that a drain is announced; 0 for any time
	Keepalive Keepalive
}

// MaxDraining is how long a side that drains accepts calls of a peer that does not answer and still
// has calls open. It is grpc-go's value. If the peer has no calls open, it is Limits.Patience.
const MaxDraining = time.Minute

// A Clock tells the time.
type Clock interface{ Now() time.Time }

// A State is how far a connection is. It only moves forward.
type State byte

const (
	Opening  State = iota // nothing was sent
	Open                  // there may be calls
	Ending                // all calls were ended for a reason, and some may still have something to send
	Finished              // no call is left, and none begins
	Closed                // the connection is closed, or about to be
)

// A Drain is how far a side is in accepting no more calls.
type Drain byte

const (
	Accepting Drain = iota
	Announced       // the peer was told, and calls that are on their way are accepted
	Refusing        // no call is accepted
)

// A Task is a set of things that a connection has to do, in this order.
type Task uint16

const (
	RefuseOwn  Task = 1 << iota // make no more calls: see Life.Refusal
	Announce                    // tell the peer that its calls will be refused, and ask for its answer
	RefusePeer                  // refuse the peer's calls, and tell it which call was the last
	EndCalls                    // end all calls: see Life.Reason
	Finish                      // no call is left: tell the peer, after everything else
	Expire                      // end all calls, for ErrOld
	Lost                        // end all calls, for ErrDead
	Ping                        // send a PING
	Close                       // close the connection
	SetTimer                    // set the timer to Life.Next
)

// Why a connection ends, or makes no more calls, by its own life. A transport adds its reasons: that the
// connection was lost, that the peer broke the protocol, and what the peer says in its last frame.
var (
	ErrIdle    = errors.New("the connection was idle for MaxConnectionIdle")
	ErrOld     = errors.New("the connection reached MaxConnectionAge")
	ErrDead    = errors.New("keepalive: the peer did not answer a ping in time")
	ErrRetired = errors.New("the connection is retired") // by its owner, for another one

	ErrServerStops = errors.New("the server is going away")
	ErrPeerStops   = errors.New("the peer is going away")         // it is the server
	ErrClientStops = errors.New("the client takes no more calls") // and keeps the connection
)

// Each timer has a place in Life.due.
const (
	drainTimer = iota // the peer is late to answer the announcement
	idleTimer
	ageTimer
	graceTimer
	closeTimer // the peer takes nothing
	pingTimer
	timers
)

// State returns how far the connection is.
func (l *Life) State() State { return l.state }

// Drain returns how far this side is in accepting no more calls.
func (l *Life) Drain() Drain { return l.drain }

// Refusal returns why this side makes no more calls, or nil while it does.
func (l *Life) Refusal() error { return l.refusal }

// Leaving returns why the connection ends when no call is left, or nil if it does not.
func (l *Life) Leaving() error { return l.leaving }

// Reason returns why all calls were ended, or nil if they were not.
func (l *Life) Reason() error { return l.reason }

// Start says that the connection can be used from now on. accepts says that this side accepts calls.
func (l *Life) Start(accepts bool) Task {
	if l.state != Opening {
		return 0
	}
	now := l.Clock.Now()
	l.state, l.accepts = Open, accepts
	l.idleSince = now
	l.set(idleTimer, now, l.Idle)
	l.set(ageTimer, now, l.Age)
	l.set(pingTimer, now, l.Keepalive.Every)
	do := SetTimer
	if l.drain == Announced {
		l.drain = Accepting
		do |= l.announce()
	}
	return do | l.settle()
}

// CallBegins says that a call of either side begins.
func (l *Life) CallBegins() Task {
	l.calls++
	if l.pinging.dormant {
		return l.pingWhenAllowed(l.Clock.Now())
	}
	return 0
}

// CallEnds says that such a call has left the connection: nothing of it will be sent or received.
func (l *Life) CallEnds() Task {
	l.calls--
	if l.calls > 0 {
		return 0
	}
	if l.Idle > 0 {
		l.idleSince = l.Clock.Now()
	}
	return l.settle()
}

// StopAccepting starts a drain. A side that has accepted the connection leaves. It may make calls until
// no call is left.
func (l *Life) StopAccepting() Task {
	do := l.announce()
	if l.Accepted {
		do |= l.leave(ErrServerStops)
	}
	return do
}

// Retire makes this side make no more calls, drain and leave.
func (l *Life) Retire() Task { return l.retire(ErrRetired) }

func (l *Life) retire(reason error) Task {
	return l.RefuseOwn(reason) | l.announce() | l.leave(reason)
}

// PeerAnswers says that the peer has answered the announcement, and that the calls that it made before
// have arrived. If the peer is OneWay, it says instead that an answer tells the peer of the drain.
func (l *Life) PeerAnswers() Task {
	if l.drain != Announced {
		return 0
	}
	return l.refusePeer() | l.settle()
}

// PeerDrains says that the peer will refuse this side's calls, for reason. A side that has opened the
// connection leaves, as the peer does.
func (l *Life) PeerDrains(reason error) Task {
	do := l.RefuseOwn(reason)
	if !l.Accepted {
		do |= l.leave(reason)
	}
	return do
}

// PeerFinishes says that the peer is Finished. This side has nothing to wait for once it is, too.
func (l *Life) PeerFinishes(reason error) Task {
	l.peerFinished = true
	if l.state == Finished {
		return l.close()
	}
	return l.RefuseOwn(reason) | l.refusePeer() | l.leave(reason)
}

// End ends all calls for reason. lost says that nothing more can be sent, so that the connection must
// be closed. The first reason counts.
func (l *Life) End(reason error, lost bool) (do Task) {
	if lost || l.state == Opening {
		do |= l.close()
	}
	if l.reason != nil {
		return do
	}
	l.reason = reason
	do |= l.RefuseOwn(reason) | l.refusePeer() | EndCalls | SetTimer
	if l.state < Ending {
		l.state = Ending
	}
	l.due = [timers]time.Time{}
	if l.state < Closed {
		l.Takes()
	}
	return do | l.settle()
}

// Takes says that the peer takes bytes of a side that is Ending or Finished. The peer has all of
// Limits.Patience again.
func (l *Life) Takes() Task {
	l.set(closeTimer, l.Clock.Now(), l.Patience)
	return SetTimer
}

// Closes says that the connection is closed.
func (l *Life) Closes() Task { return l.close() &^ Close }

// announce starts the drain, or refuses calls at once if none can be on its way.
func (l *Life) announce() Task {
	switch {
	case l.drain == Refusing || l.state == Closed:
		return 0
	case l.state == Opening:
		l.drain = Announced // Start announces it
		return 0
	case !l.accepts || l.OneWay:
		return l.refusePeer()
	case l.drain == Announced:
		return 0
	}
	now := l.Clock.Now()
	l.drain, l.announcedAt = Announced, now
	l.pinging.pingSentAt = now // a PING asks for the answer
	l.set(drainTimer, now, l.Patience)
	return Announce | SetTimer
}

// RefuseOwn makes this side make no more calls, for reason.
func (l *Life) RefuseOwn(reason error) Task {
	if l.refusal != nil {
		return 0
	}
	l.refusal = reason
	return RefuseOwn
}

func (l *Life) refusePeer() Task {
	if l.drain == Refusing {
		return 0
	}
	l.drain = Refusing
	l.due[drainTimer] = time.Time{}
	return RefusePeer
}

func (l *Life) leave(reason error) Task {
	if l.leaving == nil {
		l.leaving = reason
	}
	return l.settle()
}

// settle finishes the connection if nothing is left to wait for.
func (l *Life) settle() (do Task) {
	switch {
	case l.calls > 0 || l.state == Opening || l.state >= Finished:
		return 0
	case l.state == Open && l.leaving == nil:
		return 0
	case l.state == Open && l.drain == Announced:
		return 0 // PeerAnswers or the timer follows
	case l.state == Open && l.drain == Accepting:
		if do = l.announce(); l.drain == Announced {
			return do
		}
	}
	l.state = Finished
	do |= l.RefuseOwn(l.leaving) | Finish
	switch {
	case l.peerFinished:
		do |= l.close()
	case l.due[closeTimer].IsZero():
		do |= l.Takes()
	}
	return do
}

func (l *Life) close() Task {
	if l.state == Closed {
		return 0
	}
	l.state = Closed
	l.due = [timers]time.Time{}
	return Close | SetTimer
}
