package inproc

import (
	"context"
	"errors"
	"sync/atomic"

	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/wait"
)

// ErrLeft is returned to a callee that uses a call whose caller has left.
var ErrLeft = errors.New("link: the caller has left")

// A Call is a unary call that both sides share. The caller's part is its [link.UnaryCall], whose Shared
// is the call's [Callee].
//
// The callee reads and writes the caller's memory (the request, the reply, the results) only
// inside a claim. A claim is refused once the caller has left. Any number of claims may be held
// at a time. A caller that leaves early waits until all claims are released, but never for a
// handler. So the callee does not touch the caller's memory after Session.Invoke has returned.
//
// No user code of one side runs on the other side's goroutine. No user code runs inside a claim
// either: a leaving caller would wait for that code while it holds its own locks. A message that a
// codec cannot copy without user code is passed as bytes: the sender encodes it before the claim
// that hands it over, and the receiver decodes it after that claim. The bytes are immutable, and
// the receiver takes a reference to them inside a claim, so it may decode them at any time, even
// after the caller has left.
type Call struct {
	link.UnaryCall

	state   atomic.Uint32
	encoded *message.Message // a reply that the caller decodes itself
	parker  wait.Parker      // the caller's; written before the waiting bit is set
	reason  error            // why the call was aborted; written before the aborted bit
}

// A Callee is the callee's side of a Call.
type Callee interface {
	// Call returns the call.
	Call() *Call

	// Aborted is called when the caller has left.
	Aborted(reason error)
}

func (c *Call) callee() Callee { return c.Shared.(Callee) }

// The state is a set of bits and, above them, the number of claims.
const (
	leaving  = 1 << iota // the caller leaves: no further claim
	aborting             // one Abort may write reason: no further claim
	aborted              // reason is written: no further claim
	ended                // the result is complete: no further claim

	// waiting says that the caller parks. The goroutine whose step settles the call clears this
	// bit in the same step, and gives the caller's Parker one token. So that Parker holds no token
	// before the bit is set, and none when Wait returns.
	waiting

	oneClaim
)

const gone = leaving | aborting | aborted | ended

func (c *Call) claim() bool {
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

// release ends a claim and sets the bits of more. The last release wakes the caller
// if the call has an outcome.
func (c *Call) release(more uint32) {
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

// Take copies or decodes the request into to.Dst. It returns ErrLeft if the caller has left, or an
// error of Message.DecodeInto.
func (c *Call) Take(to *message.Sink) error {
	bytes, err := c.copyRequest(to)
	if bytes == nil {
		return err
	}
	err = bytes.DecodeInto(to)
	bytes.Free() // not deferred: a codec that panics may have kept the bytes
	return err
}

// copyRequest copies the request into to.Dst. If the request can only be copied as bytes,
// copyRequest returns the bytes, and Take decodes them outside the claim.
func (c *Call) copyRequest(to *message.Sink) (bytes *message.Message, err error) {
	if !c.claim() {
		return nil, ErrLeft
	}
	defer c.release(0) // also when a codec panics
	m, encoded := c.Request.(*message.Message)
	if !encoded {
		live := message.Live(c.Request, c.Codec)
		if ok, err := live.CopyInto(to); ok || err != nil {
			return nil, err
		}
		m = &live
	}
	return freeze(m) // runs no user code: a message that needs it was encoded by the caller
}

// freeze returns m as an encoded message that does not change with m's value. The error is a
// *message.SendError.
func freeze(m *message.Message) (*message.Message, error) {
	frozen, err := m.Freeze()
	if err != nil {
		return nil, err
	}
	return &frozen, nil
}

// Send sends those of header, reply and end that are not nil. The end ends the call. The callee must
// not modify header or trailer afterwards.
//
// Send returns ErrLeft if the caller has left. It returns a *message.SendError if reply
// cannot be encoded; then the caller has seen nothing, and the call has not ended.
// A reply that the caller cannot decode is no error here: it becomes ReplyError.
func (c *Call) Send(header metadata.MD, reply *message.Message, end *link.End) error {
	if ok, err := c.sendCopy(header, reply, nil, end); ok || err != nil {
		return err
	}
	bytes, err := freeze(reply) // for the caller to decode
	if err != nil {
		return err
	}
	if _, err = c.sendCopy(header, nil, bytes, end); err != nil {
		bytes.Free()
	}
	return err
}

// sendCopy does the work of Send, either for a reply that it copies or for an encoded one, which
// the call keeps. If ok is false and err is nil, reply cannot be copied, and the caller has seen
// nothing.
func (c *Call) sendCopy(header metadata.MD, reply, encoded *message.Message, end *link.End) (ok bool, err error) {
	if !c.claim() {
		return false, ErrLeft
	}
	var outcome uint32
	defer func() { c.release(outcome) }() // also when a codec panics
	if reply != nil {
		if ok, err := c.fill(header, reply); !ok {
			return false, err
		}
	}
	if encoded != nil {
		c.encoded, c.Replied = encoded, true
	}
	if header != nil {
		c.Header = header
	}
	if end != nil {
		c.End, outcome = *end, ended
	}
	return true, nil
}

// fill copies m into the caller's Reply. header is the header that comes with m. fill does not
// retain m, so replies need not escape to the heap.
func (c *Call) fill(header metadata.MD, m *message.Message) (ok bool, err error) {
	to := c.sink(header)
	ok, err = m.CopyInto(&to)
	if _, refused := err.(*message.RecvError); refused {
		c.ReplyError, ok, err = err, true, nil
	}
	c.Replied = ok
	return ok, err
}

// sink returns the destination of a reply. header is the header that comes with it.
func (c *Call) sink(header metadata.MD) message.Sink {
	to := message.Sink{Dst: c.Reply, Codec: c.Codec, Limit: c.MaxReply, Compressor: c.Encoding}
	if own := header[link.EncodingKey]; len(own) > 0 {
		to.Compressor = own[0]
	}
	return to
}

// Abort ends the call for reason and wakes the caller. It does nothing if the call has
// ended or the caller is leaving. It is safe for concurrent use.
func (c *Call) Abort(reason error) {
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

// Wait waits until the call has ended, was aborted, or the caller's context is done.
// In the last case the caller leaves, and the callee learns of it.
//
// Wait returns nil if the call ended and its results are valid. Otherwise it returns the
// reason, and of the results only Header may be read. A task waits with its own Parker, and any
// other caller with a Parker that w supplies.
func (c *Call) Wait(w wait.Waiter) error {
	w, err := c.wait(w)
	if c.parker != nil {
		w.Release(c.parker)
	}
	if err == nil {
		c.Late = link.Passed(c.Deadline)
	}
	if c.encoded != nil {
		if err == nil {
			to := c.sink(c.Header)
			c.ReplyError = c.encoded.DecodeInto(&to)
			c.ReplySize = to.Size
		}
		c.encoded.Free()
	}
	if err == nil && c.Status != nil {
		// The handler may have failed because the caller's context ended. The caller
		// then gets the context's error, not the handler's status for it.
		if err = link.ContextErr(c.Caller); err != nil {
			c.End = link.End{}
		}
	}
	// A handler may retain its context, and with it c, for a long time.
	c.Request, c.Reply, c.encoded = nil, nil, nil
	return err
}

// wait is Wait without the results. It also returns the Waiter to which c.parker must be released.
func (c *Call) wait(w wait.Waiter) (wait.Waiter, error) {
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
				c.callee().Aborted(left)
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
			ctx = context.Background() // the outcome is decided and will be complete soon
		}
		stop := wait.OnAbandon(w, c)
		err := c.parker.Park(ctx)
		stop()
		if err != nil && c.stopWaiting() {
			left = link.ContextEnd(err)
		}
	}
}

// stopWaiting clears the waiting bit, or takes the token if another goroutine has cleared the bit.
// If the call has no outcome, it sets leaving. It reports whether it has set leaving.
func (c *Call) stopWaiting() bool {
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

// Abandoned implements [wait.Abandoned], for a task that waits for the call: the caller leaves.
func (c *Call) Abandoned() {
	for {
		s := c.state.Load()
		if s&(aborting|ended) != 0 {
			return
		}
		if c.state.CompareAndSwap(s, s&^waiting|leaving) {
			c.callee().Aborted(context.Canceled)
			return
		}
	}
}
