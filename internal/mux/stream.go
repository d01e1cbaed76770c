package mux

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nearcall/nearcall/internal/encoded"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/mux/waits"
	"github.com/nearcall/nearcall/internal/wait"
	"github.com/nearcall/nearcall/internal/wire"
)

// A stream is one side of a call.
// It implements [link.InlineStream], [link.TaskStream] and [link.Freer].
type stream struct {
	session *Session
	caller  bool
	waiter  wait.Waiter

	// The compressor of sent messages, "" or "identity" for none: the one in the
	// callee's header, or the call's. It belongs to the sender.
	sends string

	number uint64 // the id, once a sender of messages has seen it; belongs to the sender

	deadline time.Time // of a call of this side; zero for none

	// Guarded by session.mu.
	id       uint64 // zero until the first frame is written
	onAbort  func(error)
	reason   error // why it was aborted
	ended    bool  // the end was sent, or received and delivered; then the call cannot be aborted
	answered bool  // the peer has sent a frame of it, apart from the head that opens it

	// Guarded by session.mu: the sending side.
	sendErr error // why nothing more can be sent
	out     []outgoing
	outOne  [1]outgoing  // backing array of out while there is only one
	flow    waits.Sender // counts the messages in the field out, in steps and runs
	answers bool         // Recv was called since the last message was sent, or no message was sent
	sender  wait.Cond

	// The write queue that the stream is in, or nil, and its neighbours there. The field out of a
	// queued stream is not empty.
	queue      *writeQueue
	prev, next *stream

	held bool // the peer's limit of open calls is reached: the stream is in writing.held

	in       inbox
	unpacked unpacked

	yielding yielding
	heard    uint64 // value of silent.reads when the last frame arrived, or when the stream began

	holders atomic.Int32 // of a stream of the peer: see streamPool
}

// An outgoing is a step or a run that waits to be written. message is the buffer of the step's
// message, or nil if it has none.
type outgoing struct {
	step    wire.Step
	message *buffer
	run     run // if it is set, the step is zero
}

// initStreamLocked initializes st and adds it to the live streams.
func (s *Session) initStreamLocked(st *stream, id uint64, encoding string) {
	st.session, st.id, st.flow.Credit, st.answers = s, id, s.hello.Stream, true
	st.sends, st.in.Encoding = encoding, encoding
	st.in.flow.Window = s.opts.granted()
	st.in.flow.Credit = st.in.flow.Window
	st.heard = s.silent.reads
	s.streamsBegun++
	st.yielding.begun = s.streamsBegun
	s.live[st] = struct{}{}
	s.performLocked(s.life.CallBegins())
}

// enqueueLocked queues a step to be written, or drops it if the call was aborted.
func (st *stream) enqueueLocked(step wire.Step, message *buffer) {
	if st.reason != nil {
		st.session.unplace(&step)
		return // the peer no longer needs it
	}
	if step.HasMessage {
		n := len(step.Message) + wire.MessageCost
		if step.Placed {
			n += step.Size
		}
		st.flow.Backlog += n
		st.session.writing.backlog += n
	}
	if n := len(st.out); n > 0 && st.out[n-1].run.frames == nil && st.out[n-1].step.Join(&step) {
		if message != nil {
			st.out[n-1].message = message
		}
		return
	}
	if st.out == nil {
		st.out = st.outOne[:0]
	}
	st.out = append(st.out, outgoing{step: step, message: message})
	st.flow.Queued++
	st.scheduleLocked()
}

// scheduleLocked puts the stream into a write queue if it has something to write and is in none. A
// stream that is in writing.starved stays there until the connection has credit.
func (st *stream) scheduleLocked() {
	switch w := &st.session.writing; {
	case st.queue != nil || len(st.out) == 0:
	case st.held:
		w.held.push(st)
	case st.out[0].step.Begun:
		w.bulk.push(st)
	default:
		w.ready.push(st)
	}
}

func (st *stream) Send(f *link.Frame) error {
	if sent := st.sendPlain(f); sent {
		return nil
	}
	s := st.session
	step := wire.Step{Header: f.Header, HalfClose: f.EndSend, End: f.End}
	if name, ok := encoded.EncodingOf(f.Header); ok { // no message is sent before the header
		st.sends = name
	}
	var message *buffer
	if f.HasMsg {
		var err error
		if message, err = s.encode(&step, &f.Msg, st.sends); err != nil {
			return err
		}
	}
	s.mu.Lock()
	if err := encoded.CheckBlocks(f, s.hello.Block); err != nil {
		var after callbacks
		st.abortLocked(err, true, &after) // the caller learns why
		s.unplace(&step)
		s.flush(false)
		after.run()
		message.Free()
		return err
	}
	for f.HasMsg && st.sendErr == nil {
		if st.flow.Lacks() {
			_ = s.await(context.Background(), st, &st.sender)
		} else if st.flow.Full(st.session.writing.backlog) {
			_ = s.sleep(context.Background(), st, &st.sender) // until the writer has made room
		} else {
			break
		}
	}
	if err := st.sendErr; err != nil {
		s.unplace(&step)
		if f.End != nil { // no message will be received any more
			st.in.dropPlacesLocked()
		}
		s.flush(false)
		message.Free()
		return err
	}
	large := st.waiter == nil && st.yielding.shouldYield(len(step.Message)+step.Size, s.streamsBegun)
	if !step.Done() {
		st.enqueueLocked(step, message)
	}
	if f.HasMsg {
		st.number = st.id
	}
	var after callbacks
	if f.End != nil {
		st.ended = true
		st.in.dropPlacesLocked()
		st.endBothLocked(link.ErrEnded, &after)
	}
	switch {
	case f.More:
		s.mu.Unlock()
	case st.answers || !f.HasMsg || f.End != nil || f.EndSend:
		st.answers = false
		s.flush(true)
	default:
		s.wakeWriterLocked() // another message is likely to follow, and can be written together with this one
		s.mu.Unlock()
	}
	after.run()
	if large {
		giveWay()
	}
	return nil
}

// endBothLocked ends sending at once. Receiving ends after everything that has arrived was
// received.
func (st *stream) endBothLocked(why error, after *callbacks) {
	if st.sendErr == nil {
		st.sendErr = why
	}
	st.in.Close(why)
	if len(st.out) == 0 {
		st.unregisterLocked()
	}
	after.unpark(st.session.wakeLocked(&st.sender))
	after.unpark(st.session.wakeLocked(&st.in.receiver))
}

// unregisterLocked removes the stream from the session, so that nothing more arrives for it.
func (st *stream) unregisterLocked() {
	s := st.session
	if st.id != 0 && s.streams[st.id] == st {
		delete(s.streams, st.id)
		if !st.caller {
			s.calls--
			s.checkWrittenLocked()
		}
	}
	if _, live := s.live[st]; !live {
		return
	}
	delete(s.live, st)
	st.removeUnreadLocked(st.in.unread)
	if st.caller {
		if st.id == 0 {
			s.numberedLocked()
		}
		if !st.held {
			s.releaseCallLocked()
		}
	}
	s.performLocked(s.life.CallEnds()) // after the last call the writer writes BYE, if it is due
}

func (st *stream) Abort(reason error) {
	var after callbacks
	s := st.session
	s.mu.Lock()
	st.abortLocked(reason, s.life.Reason() == nil, &after) // once the session has ended, BYE tells the peer
	s.flush(false)
	after.run()
}

// Abandoned implements [wait.Abandoned], for a task that waits for the peer.
func (st *stream) Abandoned() { st.Abort(context.Canceled) }

// abortLocked ends the call for reason, if it has not ended. If tell is set, the peer gets a RESET.
func (st *stream) abortLocked(reason error, tell bool, after *callbacks) {
	if st.ended || st.reason != nil {
		return
	}
	st.reason = reason
	known := st.id != 0 && st.session.streams[st.id] == st
	st.dropQueuedLocked()
	if tell && known {
		code, text := encoded.ResetOf(reason)
		st.session.writing.control = wire.AppendReset(st.session.writing.control, st.id, code, text)
	}
	st.unregisterLocked()
	st.in.DropPartial()
	f := st.onAbort
	switch {
	case f == nil:
		st.endBothLocked(reason, after)
	case st.caller:
		st.endBothLocked(reason, after)
		after.last = append(after.last, func() { f(reason) })
	default:
		after.first = append(after.first, func() {
			f(reason)
			var after callbacks
			st.session.mu.Lock()
			st.endBothLocked(reason, &after)
			st.session.mu.Unlock()
			after.run()
		})
	}
}

// abortUnreadLocked ends a call that the peer no longer reads. Unlike abort it also drops an END
// that was not written yet.
func (st *stream) abortUnreadLocked(reason error, after *callbacks) {
	st.abortLocked(reason, false, after)
	if st.ended {
		st.dropQueuedLocked()
		st.unregisterLocked()
	}
}

// dropQueuedLocked drops all queued steps.
func (st *stream) dropQueuedLocked() {
	for i := range st.out {
		st.session.unplace(&st.out[i].step)
		st.out[i].run.frames.Free()
	}
	clear(st.out)
	st.session.writing.backlog -= st.flow.Backlog
	st.out, st.flow.Backlog, st.flow.Queued = nil, 0, 0
	if st.queue != nil {
		st.queue.remove(st)
	}
}

func (st *stream) OnAbort(f func(error)) {
	s := st.session
	s.mu.Lock()
	st.onAbort = f
	reason := st.reason
	s.mu.Unlock()
	if reason != nil {
		f(reason)
	}
}

func (st *stream) SetWaiter(w wait.Waiter) { st.waiter = w }

// Reuse of streams.
//
// A stream is larger than most messages, so the streams of unary calls are pooled. For a call of
// this side, Invoke takes a stream from the pool and puts it back. The stream of a call of the
// peer has several holders, and the last one to drop it puts it into the pool.
//
// Invariants:
//   - holders counts the users of the stream: the session until the callee has ended the call and
//     everything was written; the acceptor until it calls Free; offerToAcceptor; and the read
//     loop while it runs the stream's handler.
//   - If a stream ended in another way, the session does not drop it, so it is not reused:
//     callbacks may be on their way to it. The acceptor does not free streams of streaming
//     methods, so they are not reused.

// streamPool has cleared streams.
var streamPool = sync.Pool{New: func() any { return new(stream) }}

// recycle puts a stream that nobody holds into the pool.
func (st *stream) recycle() {
	*st = stream{}
	streamPool.Put(st)
}

// Free says that one of the stream's holders uses it no more. It implements [link.Freer].
func (st *stream) Free() {
	if st.holders.Add(-1) == 0 {
		st.recycle()
	}
}

// dropWrittenLocked drops the stream for the session if the callee has ended the call and
// everything has just been written. It keeps the stream of an aborted call. The caller does not use
// the stream after that.
func (st *stream) dropWrittenLocked() {
	if !st.caller && st.ended && len(st.out) == 0 {
		st.Free()
	}
}

// encode makes m the message of step: serialized, and compressed with the compressor called name.
// Empty messages are not compressed. It returns the buffer with the bytes, or nil if they are in
// a place that the peer can read. The error is a *message.SendError.
func (s *Session) encode(step *wire.Step, m *message.Message, name string) (*buffer, error) {
	step.HasMessage = true
	name = message.Compressor(name)
	if b := encoded.Ready(m, name); b != nil {
		step.Message, step.Compressed = b.B, true
		return b, nil
	}
	if b := encoded.Small(m); b != nil {
		return pack(step, b, name)
	}
	sized, err := m.Sized()
	if err != nil {
		return nil, err
	}
	defer sized.Free()
	n := sized.Bound()
	places := s.placer != nil && name == ""
	if places && n >= minPlaced {
		if data := sized.Data(); len(data) == 1 {
			if step.Place, step.Placed = s.placer.PlaceOf(data[0].ReadOnlyData()); step.Placed {
				step.Size = n
				return nil, nil
			}
		}
		if b, err := s.encodeInPlace(step, &sized); b != nil || err != nil || step.Placed {
			return b, err
		}
	}
	b := newBuffer(n)
	if b.B, err = sized.Append(b.B); err != nil {
		return nil, err
	}
	if places && n == 0 && len(b.B) >= minPlaced { // the size was not known before encoding
		whole := message.EncodedBytes(b.B)
		if _, _ = s.encodeInPlace(step, &whole); step.Placed {
			b.Free()
			return nil, nil
		}
	}
	return pack(step, b, name)
}

// pack makes b the message of step, compressed with the compressor called name. It takes
// ownership of b, and returns the buffer with the bytes.
func pack(step *wire.Step, b *encoded.Buffer, name string) (_ *encoded.Buffer, err error) {
	b, step.Compressed, err = encoded.Compress(b, name)
	if err == nil {
		step.Message = b.B
	}
	return b, err
}

// yielding decides whether a stream of large messages yields to other calls of its connection. If
// two processes share few processors, a thread that moves large messages keeps its processor for
// as long as the scheduler allows, and a small call waits several milliseconds at each step. So
// after each large message the sender or receiver yields to other threads, as long as other calls
// come in. With too few processors this costs two fifths of the stream's throughput; other
// threads get that time (docs/adr/0013).
//
// Guarded by the session's mu.
type yielding struct {
	begun uint64 // how many streams the session had begun at the last check
	lasts int    // the number of large messages for which the stream still yields
}

const (
	// largeMessage is the size from which a message counts as large, in bytes. Copying
	// one takes about ten microseconds.
	largeMessage = 64 << 10

	// yieldsAfterCall is how many large messages the stream still yields for after the last new
	// call. That takes about ten milliseconds. After that it assumes that it is alone.
	yieldsAfterCall = 64
)

// shouldYield reports whether the goroutine that has just moved a message of n bytes should yield
// to other threads. begun is how many streams the session has begun.
func (y *yielding) shouldYield(n int, begun uint64) bool {
	if n < largeMessage {
		return false
	}
	if y.begun != begun {
		*y = yielding{begun, yieldsAfterCall}
	}
	if y.lasts == 0 {
		return false
	}
	y.lasts--
	return true
}
