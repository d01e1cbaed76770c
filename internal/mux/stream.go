package mux

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/nearcall/nearcall/internal/encoded"
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

// A writeQueue is a queue of streams. A stream is in at most one queue, and there at most once. It
// leaves the queue as soon as it has nothing left to write. So calls that are made and cancelled
// while the writer is blocked do not accumulate there.
type writeQueue struct{ first, last *stream }

func (q *writeQueue) push(st *stream) {
	st.queue, st.prev = q, q.last
	if q.last == nil {
		q.first = st
	} else {
		q.last.next = st
	}
	q.last = st
}

func (q *writeQueue) remove(st *stream) {
	if st.prev == nil {
		q.first = st.next
	} else {
		st.prev.next = st.next
	}
	if st.next == nil {
		q.last = st.prev
	} else {
		st.next.prev = st.prev
	}
	st.queue, st.prev, st.next = nil, nil, nil
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

// Unread messages.
//
// A stream that is not read stops at its own window and does not block other streams,
// because the connection's credit is returned as bytes arrive. To bound the memory for
// many such streams, the connection's credit is returned only while fewer than
// windowsUnread windows are unread on all streams together.
//
// Invariants:
//   - inbox.unread is the credit of the stream's unread messages, without a message that a
//     receiver waits for. Session.unread is its sum over all live streams.
//   - Credit is withheld only while at least windowsUnread windows are unread. A message no longer
//     counts once it is received or its stream has ended, and then its credit is returned. A
//     message that a receiver waits for does not count, because it alone may be larger than the
//     bound.

// windowsUnread limits the unread bytes of a connection, counted in windows of a stream.
const windowsUnread = 256

// returnConnCreditLocked returns the connection's credit once enough has accumulated for a CREDIT
// frame, and while not too many bytes are unread.
func (s *Session) returnConnCreditLocked() {
	if s.taken >= s.opts.Config.ConnWindow/4 && s.unread/windowsUnread < s.opts.Config.StreamWindow {
		s.writing.control = wire.AppendCredit(s.writing.control, 0, int64(s.taken))
		s.connIn += s.taken
		s.taken = 0
	}
}

// addUnreadLocked counts n bytes as unread.
func (st *stream) addUnreadLocked(n int) {
	st.in.unread += n
	st.session.unread += n
}

// removeUnreadLocked stops counting n bytes as unread. A stream that has left the session counts
// none.
func (st *stream) removeUnreadLocked(n int) {
	n = min(n, st.in.unread)
	st.in.unread -= n
	st.session.unread -= n
	st.session.returnConnCreditLocked()
}

// markReceivedLocked stops counting the arrived part of a message as unread, because the message
// was received or a receiver waits for it. It does nothing when called again.
func (st *stream) markReceivedLocked(it *item) {
	if it.Extra.counts {
		it.Extra.counts = false
		st.removeUnreadLocked(it.Size - it.Missing + wire.MessageCost)
	}
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
