package mux

import (
	"context"

	"github.com/nearcall/nearcall/internal/encoded"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/mux/waits"
	"github.com/nearcall/nearcall/internal/wait"
	"github.com/nearcall/nearcall/internal/wire"
)

// An inbox holds the frames of a call that have arrived and were not received yet. Guarded by the
// session's mu.
type inbox struct {
	encoded.Inbox[extra]
	flow     waits.Receiver
	unread   int  // see windowsUnread
	unary    bool // this side has made the call and expects one message
	receiver wait.Cond
}

type item = encoded.Item[extra]

// An extra is additional state of a message in the inbox.
type extra struct {
	place  *place  // where the whole message is; nil if it came through the connection
	behind *buffer // packed messages that follow this one and precede half-close and end; nil if there are none
	counts bool    // the message is counted in unread
}

// deliverLocked handles a step that has arrived. cost is the credit that its message takes. An
// error ends the session.
func (st *stream) deliverLocked(rc *wire.Received, cost int, after *callbacks) error {
	in := &st.in
	if err := in.Check(rc); err != nil {
		return err
	}
	in.AddHeader(rc)
	if rc.Begins || rc.Goes {
		if err := st.deliverMessageLocked(rc, cost); err != nil {
			return err
		}
	}
	in.AddEnd(rc)
	if rc.End != nil {
		rc.End.Late = link.Passed(st.deadline)
		st.dropQueuedLocked()
		st.endBothLocked(link.ErrEnded, after)
	}
	if !rc.Goes || !in.MidMessage() { // a receiver cannot use a piece in the middle
		after.unpark(st.session.wakeLocked(&in.receiver))
	}
	return nil
}

// deliverMessageLocked handles a message or a piece of one.
func (st *stream) deliverMessageLocked(rc *wire.Received, cost int) error {
	in := &st.in
	due := cost
	if rc.Placed { // its size may exceed the remaining credit
		due = wire.MessageCost
	}
	if due > in.flow.Credit {
		return wire.ProtocolError("the peer sends more of a call than it has credit for")
	}
	in.flow.Credit -= cost
	if rc.Begins && !rc.More && !rc.Placed && in.pack(rc.Data, rc.Compressed) {
		st.addUnreadLocked(cost)
		return nil
	}
	it := in.AddMessage(rc, &st.session.keeper)
	switch {
	case it == nil:
		st.returnCreditLocked(cost)
		return nil
	case rc.Placed:
		var err error
		it.Missing = 0
		it.Extra.place, err = st.session.placeOf(rc)
		return err
	case rc.Begins:
		it.Extra.counts = true
	}
	if it.Extra.counts {
		st.addUnreadLocked(cost)
		if rc.Goes {
			in.packLast()
		}
	}
	return nil
}

func (st *stream) Recv(f *link.Frame) error {
	f.Reset()
	if st.unpacked.pack != nil {
		if f.Dst == nil {
			return nil // the message stays for the next Recv
		}
		return st.receivePacked(f)
	}
	s, in := st.session, &st.in
	s.mu.Lock()
	st.answers = true
	for {
		it, done, err := in.Next(f)
		switch {
		case done:
			st.ended = st.ended || f.End != nil
			s.mu.Unlock()
			return err
		case it == nil:
		case it.Size > f.Limit: // as in gRPC, the limit applies to the compressed size, too
			refused := st.takeMessageLocked()
			refused.Data.Free()
			refused.Extra.place.dropLocked()
			s.flush(false)
			return &message.RecvError{Size: refused.Size, Limit: f.Limit}
		case it.Missing == 0:
			return st.receiveMessage(f)
		case st.grantForMessageLocked(it):
			s.flush(false)
			s.mu.Lock()
			continue
		}
		_ = s.await(context.Background(), st, &in.receiver)
	}
}

// receiveEndLocked receives the half-close or the end of the call from the first item, and removes
// it.
func (st *stream) receiveEndLocked(f *link.Frame) {
	st.in.TakeEnd(f)
	st.ended = st.ended || f.End != nil
}

// takeMessageLocked removes the message from the first item and takes the messages packed behind
// it. It returns the credit of the pieces that have arrived to the peer.
func (st *stream) takeMessageLocked() item {
	it := st.in.RemoveMessage()
	st.markReceivedLocked(&it)
	if it.Extra.behind != nil {
		st.takePackLocked(&it)
	}
	st.returnCreditLocked(it.Size - it.Missing + wire.MessageCost)
	return it
}

// receiveMessage decodes the first message, which is complete, into f. If it can decode the
// message, it also receives the half-close or end that follows. Called with the session's
// mu held, which it releases.
func (st *stream) receiveMessage(f *link.Frame) error {
	s := st.session
	it := st.takeMessageLocked()
	encoding := st.in.Encoding
	large := st.waiter == nil && st.yielding.shouldYield(it.Size, s.streamsBegun)
	if len(s.writing.control) > 0 && it.Extra.place == nil { // otherwise fetch flushes control
		s.wakeWriterLocked()
	}
	s.mu.Unlock()
	if err := fetch(&it); err != nil {
		return err
	}
	if err := encoded.Decode(it.Data, it.Compressed, encoding, &f.Sink); err != nil {
		return err
	}
	f.Got = true
	if it.Extra.behind == nil && (it.HalfClose || it.End != nil) {
		s.mu.Lock()
		st.receiveEndLocked(f)
		s.mu.Unlock()
	}
	if large {
		giveWay()
	}
	return nil
}

// Invoke implements [link.Session].
func (s *Session) Invoke(ctx context.Context, c *link.UnaryCall) error {
	if err := link.ContextErr(ctx); err != nil {
		return err
	}
	step := wire.Step{Open: &c.CallHeader, HasMessage: true, HalfClose: true}
	message, err := s.encode(&step, c.Message(), c.Encoding)
	if err != nil {
		return err
	}
	st := streamPool.Get().(*stream)
	st.in.unary = true
	st.waiter = wait.TaskOf(ctx)
	s.mu.Lock()
	if err := s.openLocked(st, step, message); err != nil {
		s.unplace(&step)
		s.mu.Unlock()
		st.recycle()
		message.Free()
		return err
	}
	s.flush(true)
	s.mu.Lock()
	for !st.in.Replied(c.MaxReply) {
		if it := st.in.Last(); it != nil && it.Message && st.grantForMessageLocked(it) {
			s.flush(false)
			s.mu.Lock()
			continue
		}
		if err := s.await(ctx, st, &st.in.receiver); err != nil {
			s.mu.Unlock()
			st.Abort(link.ContextEnd(err))
			s.mu.Lock()
		}
	}
	err = st.finishCall(c)
	st.recycle() // the call has ended, so the session holds no reference to st
	return err
}

// finishCall collects the result of a call whose caller can stop waiting. Called with the
// session's mu held, which it releases.
func (st *stream) finishCall(c *link.UnaryCall) error {
	replies, wrong := st.in.Collect(c)
	st.in.dropPlacesLocked()
	st.ended = st.ended || wrong == nil
	st.session.mu.Unlock()
	if wrong != nil {
		st.Abort(context.Canceled)
	}
	var lost error
	for i := range replies {
		if lost = fetch(&replies[i]); lost != nil {
			replies = replies[:i]
			break
		}
	}
	return st.in.DecodeReplies(c, replies, lost, wrong)
}
