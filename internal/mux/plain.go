package mux

import (
	"slices"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

// Plain messages are small messages of streams, in frames that hold nothing else. They are most
// of what streams send, so both sides handle many of them at once.

// maxAtOnce is how many bytes of plain frames are handled under one lock.
const maxAtOnce = 32 << 10

// handlePlain handles the plain frames at the beginning of input and returns their length. It
// stops at a frame that breaks a rule or whose call is not open, and leaves it to handleFrame. An
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
				after.unpark(s.wake(&st.in.receiver))
			}
			if st, _ = s.lookup(id); st == nil {
				break
			}
		}
		if !st.deliverPlain(message) {
			break
		}
		done += n
	}
	if st != nil && done > 0 {
		after.unpark(s.wake(&st.in.receiver))
	}
	err = s.checkOwed()
	s.mu.Unlock()
	after.run()
	return done, err
}

// deliverPlain handles a plain message, unless the call has ended or the message breaks a rule.
// It reports whether it did. The session's mu is held.
func (st *stream) deliverPlain(message []byte) bool {
	s, in := st.session, &st.in
	cost := len(message) + wire.MessageCost
	if st.ended || in.Closed || in.MidMessage() || cost > s.connIn || cost > in.flow.Credit {
		return false
	}
	s.connIn -= cost
	s.taken += cost
	s.returnConnCredit()
	s.answered, st.answered = true, true
	in.flow.Credit -= cost
	if !in.pack(message, false) {
		it := in.Begin(len(message), false)
		it.Extra.counts = true
		it.Add(message, &s.keeper)
	}
	st.addUnread(cost)
	return true
}

// A run is a queue of plain frames, which their senders have encoded without the lock. It is
// written as a whole if there is credit for it.
//
// Invariant: the peer has granted the stream's credit for all of a run. A message for which there
// is no credit yet waits as a step, which can be written in pieces.
type run struct {
	frames *buffer // nil if there is no run
	at     int     // what precedes it was written
	cost   int     // the credit that the rest takes
	count  int     // messages in the rest
}

// maxRun bounds the frames of a run, in bytes. A sender that has queued enoughToWrite bytes
// writes them itself, unless the writer already does.
const (
	maxRun        = 32 << 10
	enoughToWrite = 3 << 10
)

// sendPlain sends a frame that has a small message and nothing else. It reports whether it did.
func (st *stream) sendPlain(f *link.Frame) (sent bool) {
	if st.number == 0 || !f.HasMsg || f.Header != nil || f.EndSend || f.End != nil || link.Compressor(st.sends) != "" {
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
	st.enqueuePlain(b, cost)
	switch {
	case st.answers:
		st.answers = false
		s.flush(true)
	case st.flow.Backlog >= enoughToWrite:
		s.flush(false)
	default:
		s.wakeWriter() // another message is likely to follow
		s.mu.Unlock()
	}
	return true
}

// enqueuePlain queues a plain frame. The session's mu is held.
func (st *stream) enqueuePlain(b []byte, cost int) {
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
	st.schedule()
}

// writeRun appends the run that is the first of st's queue, as far as the connection has credit
// for whole messages. If the credit suffices only for a piece of the first message, writeRun
// makes this message a step and returns false. mu is held.
func (s *Session) writeRun(t *batch, st *stream) bool {
	r := &st.out[0].run
	frames := r.frames.B[r.at:]
	n, cost, count := len(frames), r.cost, r.count
	if int64(cost) > s.writing.connOut {
		n, cost, count = fitting(frames, s.writing.connOut)
	}
	if n == 0 && s.writing.connOut > wire.MessageCost {
		st.unqueueFirst()
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
		st.removeWritten()
	case whole:
		t.b.B = append(t.b.B, frames...)
		r.frames.Free()
		st.removeWritten()
	default:
		t.b.B = append(t.b.B, frames[:n]...)
		r.at, r.cost, r.count = r.at+n, r.cost-cost, r.count-count
	}
	st.wakeSender()
	s.keepalive.spoke = true
	st.schedule()
	st.dropWritten()
	return true
}

// fitting returns how many bytes of frames, in whole frames, and how many messages there is
// credit for, and how much credit they take.
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

// unqueueFirst takes the first message out of a run and makes it a step before the run. The
// session's mu is held.
func (st *stream) unqueueFirst() {
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
