package inproc

import (
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/wait"
)

// A queue carries frames in one direction. Only one goroutine sends messages, and only one
// receives; frames without a message may come from any goroutine.
//
// If the receiver is parked and the message can be copied without a user's codec, the sender copies
// it straight into the receiver's frame. Otherwise the sender captures the message, as bytes or as
// a copy. The receiver later moves the copy's contents out, so nothing is deeply copied twice. The
// receiver takes all queued items at once, so the two seldom touch the same memory. It leaves its
// emptied batch to the sender, which reuses the items and their captured messages.
//
// A sender waits once the bytes sent and not received reach one and a half windows. It is woken
// when they are less than one window. So it is woken once for half a window of messages, and not
// for each message.
type queue struct {
	// receiverParked tells a goroutine without the lock that want is set. It is a hint: the sender
	// looks at want again under the lock, and the receiver looks at the queue under the lock
	// before it parks.
	receiverParked atomic.Bool

	// senderBlocked tells a goroutine without the lock that the sender waits for credit. It is a
	// hint: a receiver that misses it holds back credit for less than a quarter of the window, and
	// looks again soon, because more than a window of messages is left to receive.
	senderBlocked atomic.Bool

	// handsOff lets the sender run the receiver on its own goroutine, if the receiver is a task.
	// It is set only from caller to callee: the caller may wait for the callee next. If a callee
	// ran its caller, the callee would be below the caller on the stack and could not continue.
	handsOff bool

	mu     sync.Mutex
	items  []item // sent, and not taken by the receiver yet
	used   int    // bytes that were sent and that the receiver has not reported as received
	window int    // in bytes

	// want is the frame of a parked receiver. The goroutine that sets it to nil must wake the
	// receiver. Until then that goroutine has exclusive access to the frame, filled and fillErr.
	want    *link.Frame
	filled  bool
	fillErr error

	sendErr  error // set once nothing more can be sent
	recvErr  error // set once nothing more arrives after the queued items
	receiver wait.Cond
	sender   wait.Cond

	// Only for the sender of messages.
	spare message.Message // the next message is captured into it

	// Only for the receiver.
	batch []item // taken items; those from index next on are not received yet
	next  int
	freed int // credit of received messages that was not returned yet
}

// An item is a queued frame. Once the frame was received, the item keeps only msg, which another
// Capture reuses.
type item struct {
	header  metadata.MD
	msg     message.Message
	end     *link.End
	hasMsg  bool
	endSend bool
}

// cost returns the credit that m uses, in bytes.
func cost(m *message.Message) int { return m.Bound() + link.MessageOverhead }

// maxKept is the largest batch, in items, that a queue keeps for reuse.
const maxKept = 4 * yieldEvery

// yieldEvery is the number of messages after which a sender that runs ahead yields, so that
// the receiver gets to run. Batches of this size cost little memory and few switches. It is
// not a limit.
const yieldEvery = 32

// send sends f. If f has an end, its message was captured already.
func (q *queue) send(f *link.Frame, w wait.Waiter) error {
	if q.receiverParked.Load() {
		if done, err := q.sendDirect(f); done {
			return err
		}
	}
	if f.End == nil {
		if err := q.capture(f); err != nil {
			return err
		}
	}
	return q.enqueue(f, w)
}

// capture captures the message of f in spare, for enqueue. It runs the sender's codec, so
// the caller must not hold a lock.
func (q *queue) capture(f *link.Frame) error {
	if !f.HasMsg {
		return nil
	}
	return f.Msg.Capture(&q.spare)
}

// enqueue queues f, whose message was captured, once there is credit for it.
func (q *queue) enqueue(f *link.Frame, w wait.Waiter) error {
	q.mu.Lock()
	for f.HasMsg && q.used-q.window >= q.window/2 && q.sendErr == nil {
		q.senderBlocked.Store(true)
		q.sender.Wait(&q.mu, w)
		q.senderBlocked.Store(false)
	}
	if err := q.sendErr; err != nil {
		q.mu.Unlock()
		return err
	}
	it := q.newItemLocked()
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

// newItemLocked appends an item, with the memory of the one that was there before, and returns it.
func (q *queue) newItemLocked() *item {
	n := len(q.items)
	if n == cap(q.items) {
		room := 2 // most streams queue little
		if n > 0 {
			room = max(yieldEvery, 2*n)
		}
		q.items = append(make([]item, 0, room), q.items...)
	}
	q.items = q.items[:n+1]
	return &q.items[n]
}

// sendDirect hands f to a parked receiver. done is false, and nothing has changed, if there
// is no receiver that can take it. A message with an end always goes through the queue,
// since its capture must succeed before the end counts.
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

	// Even if sending f fails, or its codec panics, sendDirect wakes the receiver.
	// The receiver then looks for frames of other goroutines, and parks again.
	brought := false
	defer func() {
		if !brought {
			p.Unpark()
		}
	}()
	if f.HasMsg {
		var ok bool
		ok, err = f.Msg.CopyInto(&to.Sink)
		if _, refused := err.(*message.RecvError); refused {
			q.fillErr, err = err, nil // only the receiver gets this error
		} else if !ok && err == nil {
			return false, nil // the message must go through bytes, which the receiver decodes
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

// wakeFor wakes a receiver that has a frame to receive.
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

// recvItem receives the next item of the batch.
func (q *queue) recvItem(f *link.Frame) error {
	it := &q.batch[q.next]
	f.Header, it.header = it.header, nil
	if it.hasMsg && f.Dst == nil {
		return nil // the message stays for a Recv that wants it
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

// giveCredit gives the credit of received messages back. If the caller must wake the sender,
// giveCredit returns it. The caller holds mu.
func (q *queue) giveCredit() wait.Parker {
	q.used -= q.freed
	q.freed = 0
	if q.used >= q.window {
		return nil
	}
	return q.sender.Wake()
}

// close makes further sends fail with sendErr, and receives with recvErr once the queue is empty.
// A nil error changes nothing, and an earlier error stays.
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

// wakeReceiver clears the field want and returns the Parker of the parked receiver, or nil if
// there is none. The receiver looks at the queue again once it is unparked. The caller holds mu.
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
