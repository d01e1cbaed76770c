package mux

import (
	"encoding/binary"

	"github.com/nearcall/nearcall/internal/encoded"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/wire"
)

// How messages come into the inbox of a call, and out of it again.

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

// deliverPlainLocked handles a plain message. It leaves one whose call has ended or that breaks a
// rule. It reports whether it did.
func (st *stream) deliverPlainLocked(message []byte) bool {
	s, in := st.session, &st.in
	cost := len(message) + wire.MessageCost
	if st.ended || in.Closed || in.MidMessage() || cost > s.connIn || cost > in.flow.Credit {
		return false
	}
	s.connIn -= cost
	s.taken += cost
	s.returnConnCreditLocked()
	s.answered, st.answered = true, true
	in.flow.Credit -= cost
	if !in.pack(message, false) {
		it := in.Begin(len(message), false)
		it.Extra.counts = true
		it.Add(message, &s.keeper)
	}
	st.addUnreadLocked(cost)
	return true
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

// receiveMessage decodes a complete message, which takeMessageLocked has returned, into f. If it can
// decode the message, it also receives the half-close or end that follows. The parameter encoding is
// the compressor of a compressed message.
func (st *stream) receiveMessage(f *link.Frame, it *item, encoding string) error {
	if err := fetch(it); err != nil {
		return err
	}
	if err := encoded.Decode(it.Data, it.Compressed, encoding, &f.Sink); err != nil {
		return err
	}
	f.Got = true
	if it.Extra.behind == nil && (it.HalfClose || it.End != nil) {
		st.session.mu.Lock()
		st.receiveEndLocked(f)
		st.session.mu.Unlock()
	}
	return nil
}

// returnCreditLocked counts n received bytes, and returns their credit to the peer once enough has
// accumulated for a CREDIT frame.
func (st *stream) returnCreditLocked(n int) {
	if grant := st.in.flow.Received(n); grant > 0 {
		st.grantCreditLocked(grant)
	}
}

// grantCreditLocked grants the peer n bytes of credit if it may still send messages.
func (st *stream) grantCreditLocked(n int) {
	s := st.session
	if s.streams[st.id] == st && !st.in.Closed && st.in.Err == nil {
		st.in.flow.Credit += n
		s.writing.control = wire.AppendCredit(s.writing.control, st.id, int64(n))
	}
}

// grantForMessageLocked grants the credit that the peer needs to send the rest of a message for
// which a receiver waits. If the message is complete but no credit is left, it grants credit for
// another message. This is for Invoke, which takes the reply only when the call has ended: an
// invalid second reply must be able to arrive before the end. It reports whether a CREDIT frame was
// queued.
func (st *stream) grantForMessageLocked(it *item) bool {
	before := len(st.session.writing.control)
	grant := 0
	switch {
	case it.Missing > 0:
		st.markReceivedLocked(it)
		grant = st.in.flow.ForMessage(it.Missing, st.session.opts.Config.MaxStreamWindow)
	case st.in.flow.Credit <= 0:
		grant = it.Size + wire.MessageCost
	}
	if grant > 0 {
		st.grantCreditLocked(grant)
	}
	return grant > 0 || len(st.session.writing.control) > before
}

// Packed messages.
//
// A queued message takes as much credit as it has bytes, plus wire.MessageCost. For a small
// message, an item and a buffer take many times as much memory, and a peer could exhaust memory
// with calls that are never read. So while messages are queued, the inbox packs small messages
// behind the item of the message before them: a varint with the size and whether it is
// compressed, then the message. The queued messages of a call thus take no more memory than a
// small multiple of their credit.
//
// The receiver takes a message together with all messages packed behind it. It then receives the
// packed messages without the session's lock, because the reading goroutine needs the lock for
// each frame.
//
// In the inbox of a unary call nothing is packed behind the first message, because Invoke looks
// for an invalid second reply among the items.

// maxPacked is the size of the largest message that is packed. Once maxPack bytes are packed
// behind one item, no further message is added. Both are in bytes.
const (
	maxPacked = 4 << 10
	maxPack   = 32 << 10
)

// packs reports whether a message of n bytes is packed behind Items[i], the last item before it.
// The message in Items[i] is complete, because the pieces of a message arrive in sequence.
func (in *inbox) packs(i, n int) bool {
	if i < 0 || i == 0 && in.unary || n > maxPacked {
		return false
	}
	it := &in.Items[i]
	return it.Message && (it.Extra.behind == nil || len(it.Extra.behind.B) < maxPack)
}

// pack packs a message that has arrived in one piece, if it is small enough and there is an item
// before it. It reports whether it did.
func (in *inbox) pack(message []byte, compressed bool) bool {
	last := len(in.Items) - 1
	if !in.packs(last, len(message)) {
		return false
	}
	in.Items[last].Extra.pack(message, compressed)
	return true
}

// packLast packs the message of the last item once its last piece has arrived, under
// the same conditions as pack.
func (in *inbox) packLast() {
	last := len(in.Items) - 1
	it := &in.Items[last]
	if it.Missing > 0 || it.Header != nil || !in.packs(last-1, it.Size) {
		return
	}
	in.Items[last-1].Extra.pack(it.Data.B, it.Compressed)
	it.Data.Free()
	*it = item{}
	in.Items = in.Items[:last]
}

// pack appends a message to those packed behind the item.
func (e *extra) pack(message []byte, compressed bool) {
	head := uint64(len(message)) << 1
	if compressed {
		head |= 1
	}
	need := len(message) + binary.MaxVarintLen16
	switch b := e.behind; {
	case b == nil:
		e.behind = newBuffer(need)
	case len(b.B)+need > cap(b.B):
		e.behind = b.Grow(len(b.B) + max(need, len(b.B)))
	}
	e.behind.B = append(binary.AppendUvarint(e.behind.B, head), message...)
}

// takePackLocked takes the messages that are packed behind the first item of the inbox. The item's
// own message was removed before.
func (st *stream) takePackLocked(it *item) {
	t := &st.unpacked
	t.pack, t.at, t.encoding = it.Extra.behind, 0, st.in.Encoding
	t.ends = it.HalfClose || it.End != nil
	t.due = st.in.flow.Due()
}

// returnSpentLocked returns the credit of packed messages that were received.
func (st *stream) returnSpentLocked() {
	if n := st.unpacked.spent; n > 0 {
		st.unpacked.spent, st.unpacked.due = 0, st.in.flow.HoldsBack()
		st.removeUnreadLocked(n)
		st.returnCreditLocked(n)
		if len(st.session.writing.control) > 0 {
			st.session.wakeWriterLocked()
		}
	}
}

// receivePacked receives the next packed message into f. After the last message it also receives
// the half-close or end that follows, if it could decode that message.
func (st *stream) receivePacked(f *link.Frame) error {
	t := &st.unpacked
	head, n := binary.Uvarint(t.pack.B[t.at:])
	begin := t.at + n
	size := int(head >> 1)
	t.at = begin + size
	b := t.pack.B[begin:t.at:t.at]
	var err error
	if size > f.Limit { // as in gRPC, the limit applies to the compressed size, too
		err = &message.RecvError{Size: size, Limit: f.Limit}
	} else if err = f.DecodeBytes(b, head&1 != 0, t.encoding); err == nil {
		f.Got = true
	}
	last := t.at == len(t.pack.B)
	if last {
		t.pack.Free()
		t.pack = nil
	}
	if t.spent += size + wire.MessageCost; last || t.spent >= t.due {
		s := st.session
		s.mu.Lock()
		st.returnSpentLocked()
		if last && t.ends && err == nil {
			st.receiveEndLocked(f)
		}
		s.mu.Unlock()
	}
	return err
}
