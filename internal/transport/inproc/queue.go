package inproc

import (
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
)

// A queue carries frames one way: one sender of messages, one receiver. Frames
// without a message may come from any goroutine.
//
// A receiver that is parked is filled directly by the sender, where that takes
// a copy and no codec of a user's. Otherwise the sender captures the message in
// a slot: as a copy, whose contents the receiver later moves out, so that
// nothing is copied deeply twice; or as bytes. Slots circulate, and with them
// what their messages were captured in.
type queue struct {
	// hungry says, without the lock, that want is set. A hint: the sender
	// looks again under the lock, and the receiver before it parks.
	hungry atomic.Bool

	mu      sync.Mutex
	ring    []*slot // grows up to what the window admits
	head, n int
	used    int // credit in use, in bytes
	window  int
	free    []*slot

	// want is the frame of a parked receiver. Whoever sets it to nil owes the
	// receiver its waking: a sender that fills it does so when it is done, and
	// until then the frame is the sender's.
	want     *link.Frame
	filled   bool
	fillErr  error
	sendErr  error // nothing more can be sent, because
	recvErr  error // after what is queued nothing more arrives, because
	receiver wait.Spot
	sender   wait.Spot

	spare *slot  // in the hand of whoever sends messages, and that one's alone
	fresh []slot // not used yet; also that one's alone
	taken *slot  // which the receiver has emptied; the receiver's alone
}

// A slot holds a frame that waits for its receiver.
type slot struct {
	header  metadata.MD
	msg     link.Message
	end     *link.End
	cost    int
	hasMsg  bool
	endSend bool
}

// yieldEvery is the number of messages after which a sender that runs ahead
// lets others run, among them the receiver. Batches of this size cost little
// memory and few switches; it is no limit.
const yieldEvery = 16

func (q *queue) send(f *link.Frame, w wait.Waiter) error {
	if q.hungry.Load() {
		if done, err := q.fill(f); done {
			return err
		}
	}
	var s *slot
	if f.HasMsg {
		if q.spare == nil {
			q.spare = q.newSlot()
		}
		s = q.spare
		if err := f.Msg.Capture(&s.msg); err != nil {
			return err
		}
		s.cost = s.msg.Bound() + link.MessageOverhead
	} else {
		s = new(slot)
	}
	s.header, s.end, s.hasMsg, s.endSend = f.Header, f.End, f.HasMsg, f.EndSend
	q.mu.Lock()
	for f.HasMsg && q.used >= q.window && q.sendErr == nil {
		q.sender.Wait(&q.mu, w)
	}
	if err := q.sendErr; err != nil {
		q.mu.Unlock()
		return err
	}
	q.push(s)
	if f.HasMsg {
		q.spare = nil // it travels now
		if n := len(q.free); n > 0 {
			q.spare = q.free[n-1]
			q.free = q.free[:n-1]
		}
	}
	var blocked wait.Parker
	if f.End != nil {
		q.sendErr = link.ErrEnded
		blocked = q.sender.Wake()
	}
	ahead := q.n%yieldEvery == 0 && f.HasMsg
	p := q.wakeReceiver()
	q.mu.Unlock()
	wait.Unpark(p)
	wait.Unpark(blocked)
	if ahead {
		wait.Yield(w)
	}
	return nil
}

// newSlot returns a slot for a message. They are made several at a time.
func (q *queue) newSlot() *slot {
	if len(q.fresh) == 0 {
		q.fresh = make([]slot, 8)
	}
	s := &q.fresh[0]
	q.fresh = q.fresh[1:]
	return s
}

// fill gives f to a parked receiver. It returns false, having done nothing,
// when there is none that could take it.
func (q *queue) fill(f *link.Frame) (done bool, err error) {
	q.mu.Lock()
	to := q.want
	if to == nil || q.n > 0 || q.sendErr != nil || f.HasMsg && (to.Dst == nil || !f.Msg.CopiesTo(&to.Sink)) {
		q.mu.Unlock()
		return false, nil
	}
	q.setWant(nil)
	var blocked wait.Parker
	if f.End != nil {
		q.sendErr = link.ErrEnded
		blocked = q.sender.Wake()
	}
	q.mu.Unlock()
	wait.Unpark(blocked)

	filled := false
	var refused error // the receiver's affair
	defer func() {
		// A frame that could not be sent leaves the receiver to look again, at
		// what others have sent meanwhile, and to wait.
		q.mu.Lock()
		q.filled, q.fillErr = filled, refused
		p := q.receiver.Wake()
		q.mu.Unlock()
		wait.Unpark(p)
	}()
	if f.HasMsg {
		err = f.Msg.DecodeInto(&to.Sink)
		if _, ok := err.(*link.RecvError); ok {
			refused, err = err, nil
		}
	}
	if err == nil {
		to.Header, to.End, to.EndSend, to.Got = f.Header, f.End, f.EndSend, f.HasMsg && refused == nil
		filled = true
	}
	return true, err
}

func (q *queue) recv(f *link.Frame, w wait.Waiter) error {
	f.Reset()
	q.mu.Lock()
	if q.taken != nil {
		if len(q.free) < yieldEvery {
			q.free = append(q.free, q.taken)
		}
		q.taken = nil
	}
	for q.n == 0 {
		if err := q.recvErr; err != nil {
			q.mu.Unlock()
			return err
		}
		q.filled = false
		q.setWant(f)
		q.receiver.Wait(&q.mu, w)
		if q.filled {
			err := q.fillErr
			q.mu.Unlock()
			return err
		}
	}
	return q.pop(f)
}

// pop delivers the first frame. It is called with the lock held and releases it.
func (q *queue) pop(f *link.Frame) error {
	s := q.ring[q.head]
	f.Header, s.header = s.header, nil
	if s.hasMsg && f.Dst == nil {
		q.mu.Unlock()
		return nil // the message stays for a receiver that wants it
	}
	q.ring[q.head] = nil
	q.head = (q.head + 1) & (len(q.ring) - 1)
	q.n--
	q.used -= s.cost
	var p wait.Parker
	if q.used <= q.window/2 {
		p = q.sender.Wake()
	}
	q.mu.Unlock()
	wait.Unpark(p)

	f.End, f.EndSend = s.end, s.endSend
	if !s.hasMsg {
		return nil
	}
	err := s.msg.DecodeInto(&f.Sink)
	s.msg.Free()
	q.taken = s
	f.Got = err == nil
	return err
}

// push appends s. The lock is held.
func (q *queue) push(s *slot) {
	if q.n == len(q.ring) {
		grown := make([]*slot, max(8, 2*q.n))
		k := copy(grown, q.ring[q.head:])
		copy(grown[k:], q.ring[:q.head])
		q.ring, q.head = grown, 0
	}
	q.ring[(q.head+q.n)&(len(q.ring)-1)] = s
	q.n++
	q.used += s.cost
}

// end refuses further sends with sendErr, and lets the receiver have recvErr
// after what is queued; nil leaves either as it is.
func (q *queue) end(sendErr, recvErr error) {
	q.mu.Lock()
	if q.sendErr == nil {
		q.sendErr = sendErr
	}
	if q.recvErr == nil {
		q.recvErr = recvErr
	}
	s := q.sender.Wake()
	var r wait.Parker
	if recvErr != nil {
		r = q.wakeReceiver()
	}
	q.mu.Unlock()
	wait.Unpark(s)
	wait.Unpark(r)
}

// wakeReceiver wakes a parked receiver that nobody fills, to look at the queue
// again. The lock is held.
func (q *queue) wakeReceiver() wait.Parker {
	if q.want == nil {
		return nil
	}
	q.setWant(nil)
	return q.receiver.Wake()
}

func (q *queue) setWant(f *link.Frame) {
	q.want = f
	q.hungry.Store(f != nil)
}
