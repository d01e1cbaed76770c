package waits

// Credit of calls.
//
// A receiver promises a window to the sender: the sender does not wait while the bytes that were
// sent but not received are fewer than the window. The receiver returns credit in portions,
// because each CREDIT frame, and each sender that it wakes, costs as much as several small
// messages. To keep its promise, it grants one portion more than it has promised.
//
// Invariants, for each direction of a call, with nothing on its way:
//   - The sum of Receiver.Credit, Receiver.Taken and the bytes that were sent but not received is
//     Receiver.Window plus Receiver.Advance. The sender has Receiver.Credit left.
//   - Taken is less than HoldsBack, and Window is at least the promise plus HoldsBack. So a
//     sender that has no credit left is ahead by the promise or more.
//   - A sender waits only if its credit does not suffice for its queued messages, or if the queue
//     is full.

// Granted returns the window that a receiver grants at first, if it promises window bytes.
func Granted(window int) int { return window + window/2 }

// A Receiver is the receiving side of a call's direction. All fields count bytes.
type Receiver struct {
	Window  int // how much the peer may send before credit is returned
	Credit  int // the peer's remaining credit
	Taken   int // credit of received messages that was not returned yet
	Advance int // granted beyond the window for one message, deducted from later returns
}

// HoldsBack returns how much credit the receiver may hold back.
func (r *Receiver) HoldsBack() int { return r.Window / 3 }

// Due returns how much must be received until credit is returned again.
func (r *Receiver) Due() int { return r.HoldsBack() - r.Taken + r.Advance }

// Received returns the credit to grant after n bytes were received; 0 for none yet.
func (r *Receiver) Received(n int) (grant int) {
	early := min(r.Advance, n)
	r.Advance -= early
	if r.Taken += n - early; r.Taken >= r.HoldsBack() {
		grant, r.Taken = r.Taken, 0
	}
	return grant
}

// ForMessage returns the credit to grant because a receiver waits for the rest of a message.
// missing is how many bytes of it have not arrived. If the peer lacks credit, ForMessage grows the
// window, or, if the window would exceed limit, grants what the peer lacks as an advance.
func (r *Receiver) ForMessage(missing, limit int) (grant int) {
	short := missing - r.Credit
	if short <= 0 {
		return 0
	}
	if room := limit - r.Window; room > 0 && room >= short {
		n := min(max(short, r.Window), room)
		r.Window += n
		return n
	}
	r.Advance += short
	return short
}

// Limits of the queues of messages, regardless of credit. The message that reaches a limit is
// still queued.
const (
	MaxBacklog = 256 << 10 // per stream, in bytes
	MaxWaiting = 1024      // per stream, in messages

	// MaxQueued bounds the bytes that wait on all streams together, because a peer that does not
	// read may have thousands of streams. Beyond it, each stream may still queue MinBacklog bytes,
	// so that streams which the peer does not read cannot stop others from sending.
	MaxQueued  = 2 << 20
	MinBacklog = 2 << 10
)

// A Sender is the sending side of a call's direction.
type Sender struct {
	Credit  int64 // from the peer, in bytes; negative after a placed message that was larger
	Backlog int   // credit that the queued messages will take
	Queued  int   // messages that are queued
}

// Full reports whether the stream may queue no more. The parameter all is the backlog of all
// streams together.
func (s *Sender) Full(all int) bool {
	return s.Backlog >= MaxBacklog || s.Queued >= MaxWaiting || s.Backlog >= MinBacklog && all >= MaxQueued
}

// Lacks reports whether the stream has no credit left for another message.
func (s *Sender) Lacks() bool { return s.Credit <= int64(s.Backlog) }

// TakesMore reports whether another message may be queued. Whenever this becomes true, mux wakes
// the goroutine that waits to send.
func (s *Sender) TakesMore(all int) bool { return !s.Lacks() && !s.Full(all) }
