package link

import (
	"context"
	"errors"
	"sync/atomic"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/wait"
)

// ErrLeft is returned to the callee that touches a call whose caller has left.
var ErrLeft = errors.New("link: the caller has left")

// A UnaryCall is one object for both sides of a unary call in process, and the place
// where they meet. The caller fills in the first group before Session.Invoke;
// the second is valid for the caller once Session.Invoke has returned nil.
//
// The callee reads and writes the caller's memory (the request, the reply, the
// results) only inside a claim, which is refused once the caller has left. Any
// number of claims may be held at a time. The caller, before it returns with
// another reason, waits out the claims that are held, never a handler. So
// nothing is read or written after Session.Invoke has returned.
//
// No code of one side's user runs on the other side's goroutine, and none runs
// inside a claim, where a caller that leaves would wait for it, with whatever locks
// it holds. What a codec cannot copy by itself crosses as bytes: its sender encodes
// it before, and its receiver decodes it after what a claim hands over. Once encoded,
// bytes belong to neither side. Nobody writes to them or frees them, so that who got
// hold of them inside a claim may decode them at any time, also when the caller has
// left.
type UnaryCall struct {
	CallHeader

	Codec   Codec // the caller's, of both messages
	Request any   // a live message, or a *Message in bytes if Codec copies only through bytes
	Reply   any   // where the reply goes
	Limit   int   // the largest reply that is taken, in bytes

	Header     metadata.MD // nil: none was sent
	Trailer    metadata.MD
	Status     *status.Status // nil for OK
	ReplyError error          // of Message.DecodeInto: the reply came but could not be taken
	Replied    bool           // a reply came, and was taken unless ReplyError is set

	state   atomic.Uint32
	callee  Callee
	encoded *Message    // a reply that the caller decodes itself
	parker  wait.Parker // the caller's; written before the waiting bit is set
	reason  error       // why the call was aborted; written before the aborted bit
}

// A Callee is told that the caller of a Call has gone.
type Callee interface {
	Aborted(reason error)
}

// The state is a set of bits and, above them, the number of claims.
const (
	leaving  = 1 << iota // the caller leaves: no further claim
	aborting             // somebody won the right to write reason
	aborted              // reason is written: no further claim
	ended                // the result is complete: no further claim

	// waiting says that the caller parks. Whoever clears it, in the same step
	// that changes something the caller waits for, leaves one token. So the
	// caller's Parker holds no token while this bit was never set, and none
	// when Wait returns.
	waiting

	oneClaim
)

const gone = leaving | aborting | aborted | ended

// SetCallee names who learns that the caller has gone. The Acceptor calls it
// before Acceptor.HandleUnary returns and before it runs a handler. The caller's side
// may have done so before, with memory that it brings along for the callee's,
// so that both live in one allocation.
func (c *UnaryCall) SetCallee(callee Callee) { c.callee = callee }

// Callee returns what SetCallee has named.
func (c *UnaryCall) Callee() Callee { return c.callee }

func (c *UnaryCall) claim() bool {
	for {
		s := c.state.Load()
		if s&gone != 0 {
			return false
		}
		if c.state.CompareAndSwap(s, s+oneClaim) {
			return true
		}
	}
}

// release ends a claim, setting more bits with it. The last one wakes a caller
// for whom there is an outcome.
func (c *UnaryCall) release(more uint32) {
	for {
		s := c.state.Load()
		next := (s - oneClaim) | more
		wake := s&waiting != 0 && next&gone != 0 && next < oneClaim
		if wake {
			next &^= waiting
		}
		if c.state.CompareAndSwap(s, next) {
			if wake {
				c.parker.Unpark()
			}
			return
		}
	}
}

// Take decodes the request into to. It returns ErrLeft when the caller has
// gone, or the errors of Message.DecodeInto.
func (c *UnaryCall) Take(to *Sink) error {
	bytes, err := c.copyRequest(to)
	if bytes == nil {
		return err
	}
	return bytes.DecodeInto(to)
}

// copyRequest copies the request to where to says. Where it has to go through bytes,
// copyRequest returns these instead, for Take to decode outside the claim.
func (c *UnaryCall) copyRequest(to *Sink) (bytes *Message, err error) {
	if !c.claim() {
		return nil, ErrLeft
	}
	defer c.release(0) // also when a codec panics
	if m, encoded := c.Request.(*Message); encoded {
		return m, nil
	}
	m := Live(c.Request, c.Codec)
	if ok, err := m.CopyInto(to); ok || err != nil {
		return nil, err
	}
	return m.encode() // by our own code: the caller encodes what others' is needed for
}

// SendHeader delivers the header. Nobody writes to md any more.
func (c *UnaryCall) SendHeader(md metadata.MD) error {
	if !c.claim() {
		return ErrLeft
	}
	c.Header = md
	c.release(0)
	return nil
}

// Finish ends the call for the caller: with header unless that is nil, with
// reply unless that is nil, and with how it ended. Nobody writes to header or
// trailer any more. It returns ErrLeft when the caller has gone before, and a
// *SendError when reply cannot be encoded: then the caller has seen nothing, and
// the call goes on. What the caller cannot take is the caller's affair, and no
// error here.
func (c *UnaryCall) Finish(header metadata.MD, reply *Message, end End) error {
	if ok, err := c.finish(header, reply, nil, end); ok || err != nil {
		return err
	}
	bytes, err := reply.encode() // for the caller to decode
	if err != nil {
		return err
	}
	_, err = c.finish(header, nil, bytes, end)
	return err
}

// finish is Finish for a reply that can be copied, or one that is encoded, which the
// call keeps. Where ok is false and err nil it could not be copied, and the call goes on.
func (c *UnaryCall) finish(header metadata.MD, reply, encoded *Message, end End) (ok bool, err error) {
	if !c.claim() {
		return false, ErrLeft
	}
	var outcome uint32
	defer func() { c.release(outcome) }() // also when a codec panics
	if reply != nil {
		if ok, err := c.fill(reply); !ok {
			return false, err
		}
	}
	if encoded != nil {
		c.encoded, c.Replied = encoded, true
	}
	if header != nil {
		c.Header = header
	}
	c.Status, c.Trailer = end.Status, end.Trailer
	outcome = ended
	return true, nil
}

// fill copies m to where the caller wants its reply. It keeps no hold of m, so that a
// reply need not be on the heap.
func (c *UnaryCall) fill(m *Message) (ok bool, err error) {
	ok, err = m.CopyInto(&Sink{Dst: c.Reply, Codec: c.Codec, Limit: c.Limit})
	if _, refused := err.(*RecvError); refused {
		c.ReplyError, ok, err = err, true, nil
	}
	c.Replied = ok
	return ok, err
}

// Abort ends the call for reason, unless it has ended or the caller is leaving
// already, and wakes the caller. Any goroutine may call it.
func (c *UnaryCall) Abort(reason error) {
	for {
		s := c.state.Load()
		if s&gone != 0 {
			return
		}
		if c.state.CompareAndSwap(s, s|aborting) {
			break
		}
	}
	c.reason = reason
	for {
		s := c.state.Load()
		if c.state.CompareAndSwap(s, s&^waiting|aborted) {
			if s&waiting != 0 {
				c.parker.Unpark()
			}
			return
		}
	}
}

// Wait waits for the end of the call, for an Abort, or for the caller's
// context to be done, in which case it leaves and tells the callee. It returns
// nil when the call ended and its result is valid; otherwise the reason, and
// of the results only Header may be read then. w is who waits, unless that is the
// task that the caller's context is of.
func (c *UnaryCall) Wait(w wait.Waiter) error {
	w, err := c.wait(w)
	if c.parker != nil {
		w.Release(c.parker)
	}
	if err == nil && c.encoded != nil {
		c.ReplyError = c.encoded.DecodeInto(&Sink{Dst: c.Reply, Codec: c.Codec, Limit: c.Limit})
		c.encoded.Free()
	}
	if err == nil && c.Status != nil {
		// The handler may have failed because it saw the caller's context end. Then
		// that is the outcome, and not what the handler made of it.
		if err = ContextErr(c.Caller); err != nil {
			c.Status, c.Trailer = nil, nil
		}
	}
	// A handler may keep its context, and with it c, for long.
	c.Request, c.Reply, c.encoded = nil, nil, nil
	return err
}

// wait returns who has waited, too.
func (c *UnaryCall) wait(w wait.Waiter) (wait.Waiter, error) {
	var left error
	for {
		s := c.state.Load()
		unsettled := s >= oneClaim || s&(aborting|aborted) == aborting
		if !unsettled {
			switch {
			case s&ended != 0:
				return w, nil
			case s&aborted != 0:
				return w, c.reason
			case s&leaving != 0:
				c.callee.Aborted(left)
				return w, left
			}
		}
		if c.parker == nil {
			w = wait.TaskOr(c.Caller, w)
			c.parker = w.Parker()
		}
		if !c.state.CompareAndSwap(s, s|waiting) {
			continue
		}
		ctx := c.Caller
		if s&gone != 0 {
			ctx = context.Background() // the outcome is near, and cannot be left
		}
		if err := c.parker.Park(ctx); err != nil {
			if c.stopWaiting() {
				left = ContextEnd(err)
			}
		}
	}
}

// stopWaiting takes back the waiting bit, or the token of whoever was faster,
// and leaves unless the outcome is settled already. It reports whether it left.
func (c *UnaryCall) stopWaiting() bool {
	for {
		s := c.state.Load()
		if s&waiting == 0 {
			_ = c.parker.Park(context.Background())
			return false
		}
		next := s &^ waiting
		if s&gone == 0 {
			next |= leaving
		}
		if c.state.CompareAndSwap(s, next) {
			return s&gone == 0
		}
	}
}
