package mux

import (
	"encoding/binary"
	"slices"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/wire"
)

// Plain messages are small messages of streams, in frames that hold nothing else. Streams send
// mostly these, so both sides handle many of them at once.

// maxAtOnce is how many bytes of plain frames are handled under one lock.
const maxAtOnce = 32 << 10

// handlePlain handles the plain frames at the beginning of input and returns their length. It
// stops at a frame that breaks a rule or has no open call, and leaves it to handleFrame. An
// error ends the session.
func (s *Session) handlePlain(input []byte) (done int, err error) {
	id, message, n := wire.Plain(input)
	if n == 0 || !s.reading.isMet || s.reading.parts.b != nil {
		return 0, nil
	}
	var after callbacks
	var st *stream
	s.mu.Lock()
	for ; n > 0 && done < maxAtOnce; id, message, n = wire.Plain(input[done:]) {
		if st == nil || st.id != id {
			if st != nil {
				after.unpark(s.wakeLocked(&st.in.receiver))
			}
			if st, _ = s.lookupLocked(id); st == nil {
				break
			}
		}
		if !st.deliverPlainLocked(message) {
			break
		}
		done += n
	}
	if st != nil && done > 0 {
		after.unpark(s.wakeLocked(&st.in.receiver))
	}
	err = s.checkOwedLocked()
	s.mu.Unlock()
	after.run()
	return done, err
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

// A run is a queue of plain frames, which their senders have encoded without the lock. It is
// written as a whole if there is credit for it.
//
// Invariant: the peer has granted the stream's credit for all of a run. A message for which there
// is no credit yet waits as a step, which can be written in pieces.
type run struct {
	frames *buffer // nil if there is no run
	at     int     // the offset of the first frame that was not written
	cost   int     // the credit that the rest takes
	count  int     // messages in the rest
}

// maxRun bounds the frames of a run, in bytes. A sender that has queued enoughToWrite bytes
// writes them itself, if the writer is not writing.
const (
	maxRun        = 32 << 10
	enoughToWrite = 3 << 10
)

// sendPlain sends a frame that has a small message and nothing else. It reports whether it did.
func (st *stream) sendPlain(f *link.Frame) (sent bool) {
	if st.number == 0 || !f.HasMsg || f.Header != nil || f.EndSend || f.End != nil || message.Compressor(st.sends) != "" {
		return false
	}
	scratch := newBuffer(maxPacked)
	defer scratch.Free() // deferred, because the codec may panic
	b := wire.BeginPlain(scratch.B, st.number)
	head := len(b)
	b, ok := f.Msg.AppendWithin(b)
	if !ok {
		return false
	}
	wire.EndPlain(b, 0)
	cost := len(b) - head + wire.MessageCost
	s := st.session
	s.mu.Lock()
	if st.sendErr != nil || st.reason != nil || st.flow.Full(st.session.writing.backlog) || st.flow.Credit-int64(st.flow.Backlog) < int64(cost) {
		s.mu.Unlock()
		return false
	}
	st.enqueuePlainLocked(b, cost)
	switch {
	case st.answers:
		st.answers = false
		s.flush(true)
	case st.flow.Backlog >= enoughToWrite:
		s.flush(false)
	default:
		s.wakeWriterLocked() // another message is likely to follow
		s.mu.Unlock()
	}
	return true
}

// enqueuePlainLocked queues a plain frame.
func (st *stream) enqueuePlainLocked(b []byte, cost int) {
	n := len(st.out)
	if n == 0 || st.out[n-1].run.frames == nil || len(st.out[n-1].run.frames.B)+len(b) > maxRun {
		if st.out == nil {
			st.out = st.outOne[:0]
		}
		st.out = append(st.out, outgoing{run: run{frames: newBuffer(len(b))}})
		n = len(st.out)
	}
	r := &st.out[n-1].run
	if need := len(r.frames.B) + len(b); need > cap(r.frames.B) {
		r.frames = r.frames.Grow(min(4*need, maxRun))
	}
	r.frames.B = append(r.frames.B, b...)
	r.cost += cost
	r.count++
	st.flow.Queued++
	st.flow.Backlog += cost
	st.session.writing.backlog += cost
	st.scheduleLocked()
}

// writeRunLocked appends the run at the head of st.out to the batch: as many whole messages as the
// connection has credit for. If the credit suffices only for a piece of the first message,
// writeRunLocked makes this message a step and returns false.
func (s *Session) writeRunLocked(t *batch, st *stream) bool {
	r := &st.out[0].run
	frames := r.frames.B[r.at:]
	n, cost, count := len(frames), r.cost, r.count
	if int64(cost) > s.writing.connOut {
		n, cost, count = fitting(frames, s.writing.connOut)
	}
	if n == 0 && s.writing.connOut > wire.MessageCost {
		st.unqueueFirstLocked()
		return false
	}
	if n == 0 {
		s.writing.starved.push(st)
		return true
	}
	s.writing.connOut -= int64(cost)
	st.flow.Credit -= int64(cost)
	st.flow.Backlog -= cost
	s.writing.backlog -= cost
	st.flow.Queued -= count
	t.size += n
	switch whole := n == len(frames); {
	case whole && s.raw != nil && n >= wire.LargePiece:
		t.pieces = append(t.pieces, cutting{len(t.b.B), frames})
		t.spent = append(t.spent, r.frames)
		st.removeWrittenLocked()
	case whole:
		t.b.B = append(t.b.B, frames...)
		r.frames.Free()
		st.removeWrittenLocked()
	default:
		t.b.B = append(t.b.B, frames[:n]...)
		r.at, r.cost, r.count = r.at+n, r.cost-cost, r.count-count
	}
	st.wakeSenderLocked()
	s.pingLimit.Spoke()
	st.scheduleLocked()
	st.dropWrittenLocked()
	return true
}

// fitting returns the length of the longest prefix of frames that consists of whole frames and for
// which the credit suffices. It also returns how much credit that prefix takes, and how many
// messages it has.
func fitting(frames []byte, credit int64) (n, cost, count int) {
	for n < len(frames) {
		_, message, size := wire.Plain(frames[n:])
		c := len(message) + wire.MessageCost
		if int64(cost+c) > credit {
			break
		}
		n, cost, count = n+size, cost+c, count+1
	}
	return n, cost, count
}

// unqueueFirstLocked takes the first message out of a run, and puts it before the run as a step.
func (st *stream) unqueueFirstLocked() {
	r := &st.out[0].run
	_, message, n := wire.Plain(r.frames.B[r.at:])
	b := newBuffer(len(message))
	b.B = append(b.B, message...)
	r.at, r.cost, r.count = r.at+n, r.cost-len(message)-wire.MessageCost, r.count-1
	first := outgoing{step: wire.Step{HasMessage: true, Message: b.B}, message: b}
	if r.count > 0 {
		st.out = slices.Insert(st.out, 0, first)
		return
	}
	r.frames.Free()
	st.out[0] = first
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

// An unpacked holds the packed messages that a receiver has taken from its inbox. It belongs to
// the receiver.
type unpacked struct {
	pack     *buffer // packed messages; nil if there are none
	at       int     // where in pack the next message begins
	encoding string  // the compressor of the messages that are compressed
	ends     bool    // the item in front of them still has a half-close or the end
	spent    int     // credit of messages that were received, not yet returned
	due      int     // spent is returned when it reaches this amount
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
