package quic

import (
	"github.com/nearcall/nearcall/internal/encoded"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/wait"
	"github.com/nearcall/nearcall/internal/wire"
)

// Receiving.
//
// Each stream has a pump, a goroutine that moves arriving frames into the stream's inbox. So the
// session sees the end of the call even if the messages before it were not received yet. A full
// inbox stops the pump; then the windows of QUIC fill, and the peer waits.

// itemCost is the memory of a message in an inbox in addition to its bytes.
const itemCost = 128

// maxHeld bounds the messages in all inboxes of a connection, in bytes. Beyond it, an inbox with
// minHeld bytes counts as full.
const (
	maxHeld = 64 << 20
	minHeld = 2 << 10
)

// maxUnread bounds the messages in a caller's inbox if its peer drains, in bytes. The bound leaves
// room for the largest window of a stream, and for one more message of gRPC's default limit. It
// fits an int on 32-bit systems, too.
func (s *session) maxUnread() int { return 2 * min(max(s.window(), maxWindow), 1<<30-1) }

// An inbox holds the frames that have arrived and were not received yet. Guarded by the stream's
// mu.
type inbox struct {
	encoded.Inbox[struct{}]
	held     int  // bytes of messages, and itemCost for each
	wanted   bool // a receiver waits for the rest of a message
	answered bool // the peer has sent a frame of the call, apart from the head that opens it
	receiver wait.Cond
	pump     wait.Cond
}

// dropLocked stops counting the bytes of the inbox, whose stream has left the session.
func (in *inbox) dropLocked(st *stream) {
	st.session.held.Add(int64(-in.held))
	in.held = 0
}

// holdLocked counts n more bytes, or fewer if n is negative.
func (st *stream) holdLocked(n int) {
	if !st.left {
		st.in.held += n
		st.session.held.Add(int64(n))
	}
}

// fullLocked reports whether the pump must wait.
func (st *stream) fullLocked() bool {
	in := &st.in
	if in.wanted || in.Err != nil {
		return false
	}
	limit := st.session.window()
	if st.caller && st.session.peerDrains.Load() {
		limit = st.session.maxUnread()
	}
	return in.held >= limit || in.held >= minHeld && st.session.held.Load() >= maxHeld
}

// mayRead waits while the inbox is full. It returns false if nothing more is received.
func (st *stream) mayRead() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	for st.fullLocked() {
		st.in.pump.Wait(&st.mu, nil)
	}
	if st.in.Err != nil && !st.in.Closed {
		st.input.finished = true
		st.dropInput()
		return false
	}
	return true
}

// deliver puts a step into the inbox. The error says that the step breaks a rule.
func (st *stream) deliver(rc *wire.Received) error {
	order.Load()
	in := &st.in
	st.mu.Lock()
	defer func() {
		receiver := in.receiver.Wake()
		st.mu.Unlock()
		wait.Unpark(receiver)
	}()
	if rc.Open == nil {
		in.answered = true
		if st.caller {
			st.session.answered.Store(true)
		}
	}
	if in.Err != nil {
		return nil // nobody receives any more
	}
	if err := in.Check(rc); err != nil {
		return err
	}
	in.AddHeader(rc)
	if rc.Begins || rc.Goes {
		n := len(rc.Data)
		if rc.Begins {
			n += itemCost
		}
		if in.AddMessage(rc, &st.session.keeper) != nil {
			st.holdLocked(n)
		}
	}
	in.AddEnd(rc)
	if in.Closed {
		st.input.finished = true
	}
	if rc.End != nil {
		rc.End.Late = link.Passed(st.deadline)
		st.callerEndedLocked()
	}
	return nil
}

// callerEndedLocked is called when the callee's end has arrived at the caller. From then on the
// caller sends nothing.
func (st *stream) callerEndedLocked() {
	if st.out.err == nil {
		st.out.err = link.ErrEnded
	}
	st.in.Err = link.ErrEnded
	if !st.out.closed {
		st.qs.CancelWrite(0)
	}
	if !st.input.eof {
		st.qs.CancelRead(0)
	}
	st.forgetLocked()
	wait.Unpark(st.out.sender.Wake())
}

// awaitLocked waits until more frames have arrived.
func (st *stream) awaitLocked() {
	if !st.direct {
		st.in.receiver.Wait(&st.mu, nil)
		return
	}
	st.mu.Unlock()
	st.next()
	st.mu.Lock()
}

func (st *stream) Recv(f *link.Frame) error {
	f.Reset()
	in := &st.in
	st.mu.Lock()
	for {
		it, done, err := in.Next(f)
		switch {
		case done:
			st.ended = st.ended || f.End != nil
			st.mu.Unlock()
			return err
		case it == nil:
		case it.Size > f.Limit: // as in gRPC, the limit applies to the compressed size, too
			refused := st.takeMessageLocked()
			st.mu.Unlock()
			refused.Data.Free()
			return &message.RecvError{Size: refused.Size, Limit: f.Limit}
		case it.Missing == 0:
			encoding := in.Encoding
			it := st.takeMessageLocked()
			st.mu.Unlock()
			return st.receive(f, it, encoding)
		default:
			in.wanted = true
			wait.Unpark(in.pump.Wake())
		}
		st.awaitLocked()
		in.wanted = false
	}
}

// takeMessageLocked removes the message from the first item, and wakes the pump if it can go on.
func (st *stream) takeMessageLocked() encoded.Item[struct{}] {
	it := st.in.RemoveMessage()
	st.holdLocked(-(it.Size - it.Missing + itemCost))
	if !st.fullLocked() {
		wait.Unpark(st.in.pump.Wake())
	}
	return it
}

// receive decodes the message of it, in an encoding, into f, and receives the end that follows it.
func (st *stream) receive(f *link.Frame, it encoded.Item[struct{}], encoding string) error {
	if err := encoded.Decode(it.Data, it.Compressed, encoding, &f.Sink); err != nil {
		return err
	}
	f.Got = true
	if it.HalfClose || it.End != nil {
		st.mu.Lock()
		st.in.TakeEnd(f)
		st.ended = st.ended || f.End != nil
		st.mu.Unlock()
	}
	return nil
}
