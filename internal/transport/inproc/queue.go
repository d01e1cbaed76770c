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
// a copy and no codec of a user's. Otherwise the sender captures the message:
// as a copy, whose contents the receiver later moves out, so that nothing is
// copied deeply twice; or as bytes. The receiver takes all that is queued at
// once, so that the two seldom touch the same memory. What it has emptied goes
// back to the sender, and with it what messages were captured in.
type queue struct {
	// receiverParked says, without the lock, that want is set. A hint: the sender
	// looks again under the lock, and the receiver before it parks.
	receiverParked atomic.Bool

	// senderBlocked says, without the lock, that the sender waits for credit. A hint:
	// a receiver that misses it keeps back less than a quarter of the window.
	senderBlocked atomic.Bool

	// handsOff says that the sender may run the receiver, if that is a task. It is so
	// from caller to callee alone: what a caller does next may be to wait for the
	// callee, which could not go on beneath it.
	handsOff bool

	mu     sync.Mutex
	items  []item // sent, and not taken by the receiver
	used   int    // credit in use, in bytes
	window int

	// want is the frame of a parked receiver. Whoever sets it to nil owes the
	// receiver its waking, and has until then the frame and what follows to
	// itself.
	want    *link.Frame
	filled  bool
	fillErr error

	sendErr  error // nothing more can be sent, because
	recvErr  error // after what is queued nothing more arrives, because
	receiver wait.Cond
	sender   wait.Cond

	// Of whoever sends messages alone.
	spare link.Message // to capture the next one in

	// The receiver's alone.
	batch []item // taken; those from next on are not received yet
	next  int
	freed int // credit of received messages that was not given back yet
}

// An item is a frame that waits for its receiver. Of an item that was received
// msg is left, for another Capture.
type item struct {
	header  metadata.MD
	msg     link.Message
	end     *link.End
	hasMsg  bool
	endSend bool
}

// cost is the credit that m takes, in bytes.
func cost(m *link.Message) int { return m.Bound() + link.MessageOverhead }

// maxKept is how many items a queue keeps for later, however many it had to
// hold.
const maxKept = 4 * yieldEvery

// yieldEvery is the number of messages after which a sender that runs ahead
// lets others run, among them the receiver. Batches of this size cost little
// memory and few switches; it is no limit.
const yieldEvery = 32

func (q *queue) send(f *link.Frame, w wait.Waiter) error {
	if q.receiverParked.Load() {
		if done, err := q.sendDirect(f); done {
			return err
		}
	}
	if err := q.capture(f); err != nil {
		return err
	}
	return q.enqueue(f, w)
}

// sendEnd is send for a frame with an end, whose message was captured.
func (q *queue) sendEnd(f *link.Frame, w wait.Waiter) error {
	if q.receiverParked.Load() {
		if done, err := q.sendDirect(f); done {
			return err
		}
	}
	return q.enqueue(f, w)
}

// capture makes the message of f independent of its sender's, for put. It runs the
// sender's codec, and so holds no lock.
func (q *queue) capture(f *link.Frame) error {
	if !f.HasMsg {
		return nil
	}
	return f.Msg.Capture(&q.spare)
}

// enqueue queues f, whose message was captured.
func (q *queue) enqueue(f *link.Frame, w wait.Waiter) error {
	q.mu.Lock()
	for f.HasMsg && q.used >= q.window && q.sendErr == nil {
		q.senderBlocked.Store(true)
		q.sender.Wait(&q.mu, w)
		q.senderBlocked.Store(false)
	}
	if err := q.sendErr; err != nil {
		q.mu.Unlock()
		return err
	}
	it := q.newItem()
	it.header, it.end, it.hasMsg, it.endSend = f.Header, f.End, f.HasMsg, f.EndSend
	if f.HasMsg {
		it.msg, q.spare = q.spare, it.msg
		q.used += cost(&it.msg)
	}
	var blocked wait.Parker
	if f.End != nil {
		q.sendErr = link.ErrEnded
		blocked = q.sender.Wake()
	}
	ahead := len(q.items)%yieldEvery == 0 && f.HasMsg
	p := q.wakeReceiver()
	q.mu.Unlock()
	wait.Unpark(blocked)
	q.wakeFor(p)
	if ahead {
		wait.Yield(w)
	}
	return nil
}

// newItem returns a new last item. The lock is held.
func (q *queue) newItem() *item {
	n := len(q.items)
	if n == cap(q.items) {
		room := 2 // most streams have little to queue
		if n > 0 {
			room = max(yieldEvery, 2*n)
		}
		q.items = append(make([]item, 0, room), q.items...)
	}
	q.items = q.items[:n+1]
	return &q.items[n]
}

// sendDirect gives f to a parked receiver. It returns false, having done nothing,
// when there is none that could take it. A message with an end behind it takes
// the other way, on which it is known to be sent before the end counts.
func (q *queue) sendDirect(f *link.Frame) (done bool, err error) {
	q.mu.Lock()
	to := q.want
	if to == nil || len(q.items) > 0 || q.sendErr != nil || f.HasMsg && (f.End != nil || to.Dst == nil || !f.Msg.CopiesTo(&to.Sink)) {
		q.mu.Unlock()
		return false, nil
	}
	q.setWant(nil)
	p := q.receiver.Wake()
	var blocked wait.Parker
	if f.End != nil {
		q.sendErr = link.ErrEnded
		blocked = q.sender.Wake()
	}
	q.mu.Unlock()
	wait.Unpark(blocked)

	// A frame that could not be sent leaves the receiver to look again, at what
	// others have sent meanwhile, and to wait. It is woken also when a codec
	// panics.
	brought := false
	defer func() {
		if !brought {
			p.Unpark()
		}
	}()
	if f.HasMsg {
		var ok bool
		ok, err = f.Msg.CopyInto(&to.Sink)
		if _, refused := err.(*link.RecvError); refused {
			q.fillErr, err = err, nil // the receiver's affair
		} else if !ok && err == nil {
			return false, nil // it has to go through bytes, which the receiver decodes
		}
	}
	if err == nil {
		to.Header, to.End, to.EndSend, to.Got = f.Header, f.End, f.EndSend, f.HasMsg && q.fillErr == nil
		q.filled = true
	}
	brought = true
	q.wakeFor(p)
	return true, err
}

// wakeFor wakes a receiver, for whom there is something.
func (q *queue) wakeFor(p wait.Parker) {
	if q.handsOff {
		wait.Handoff(p)
		return
	}
	wait.Unpark(p)
}

func (q *queue) recv(f *link.Frame, w wait.Waiter) error {
	f.Reset()
	for q.next == len(q.batch) {
		q.mu.Lock()
		if p := q.giveCredit(); p != nil {
			q.mu.Unlock()
			p.Unpark()
			continue
		}
		if len(q.items) > 0 {
			empty := q.batch[:0]
			if cap(empty) > maxKept {
				empty = nil
			}
			q.batch, q.items, q.next = q.items, empty, 0
			q.mu.Unlock()
			break
		}
		if err := q.recvErr; err != nil {
			q.mu.Unlock()
			return err
		}
		if cap(q.batch) > maxKept {
			q.batch, q.next = nil, 0
		}
		q.filled, q.fillErr = false, nil
		q.setWant(f)
		q.receiver.Sleep(&q.mu, w)
		if q.filled {
			return q.fillErr
		}
	}
	return q.recvItem(f)
}

// recvItem receives the next item.
func (q *queue) recvItem(f *link.Frame) error {
	it := &q.batch[q.next]
	f.Header, it.header = it.header, nil
	if it.hasMsg && f.Dst == nil {
		return nil // the message stays for a receiver that wants it
	}
	q.next++
	f.End, f.EndSend, it.end = it.end, it.endSend, nil
	if !it.hasMsg {
		return nil
	}
	q.freed += cost(&it.msg)
	err := it.msg.DecodeInto(&f.Sink)
	it.msg.Free()
	f.Got = err == nil
	if q.freed >= q.window/4 || q.senderBlocked.Load() {
		q.mu.Lock()
		p := q.giveCredit()
		q.mu.Unlock()
		wait.Unpark(p)
	}
	return err
}

// giveCredit gives back the credit of what was received, and returns whom that
// wakes. The lock is held.
func (q *queue) giveCredit() wait.Parker {
	q.used -= q.freed
	q.freed = 0
	if q.used > q.window/2 {
		return nil
	}
	return q.sender.Wake()
}

// close refuses further sends with sendErr, and lets the receiver have recvErr
// after what is queued; nil leaves either as it is.
func (q *queue) close(sendErr, recvErr error) {
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
	q.receiverParked.Store(f != nil)
}
