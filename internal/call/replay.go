package call

import (
	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
)

// This file keeps the sent steps of a call for replay on its next attempt, until the call is
// committed. See attempt.go for the invariants.

// A step is one send, kept for replay.
type step struct {
	msg    link.Message // encoded, or live if the user will not change it
	hasMsg bool
	end    bool // the caller sends no more
	value  any  // the user's message, for stats handlers
}

// defaultMaxReplay is grpc-go's default for how much of a call is kept for replay, in bytes.
const defaultMaxReplay = 256 << 10

// commitAttempt commits the call to the current attempt. mu is held.
func (s *clientStream) commitAttempt() {
	if !s.committed {
		s.info.committed()
	}
	s.committed, s.replayBuffer = true, nil
}

// commitAndFinish commits the call. If its attempt has failed and a retry was pending,
// the call fails.
func (s *clientStream) commitAndFinish() {
	s.lockUnlessRetrying()
	s.commitAttempt()
	a := s.current
	pending := a.retryPending
	a.retryPending = false
	s.mu.Unlock()
	if pending {
		s.finishAborted(a.abortReason)
	}
}

// commitReceived commits the call because a frame was received from a. It returns false if a was
// or is being replaced: then the frame must be dropped. recvMu is held.
func (s *clientStream) commitReceived(a *attempt) bool {
	if s.recvAttempt != nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != a || s.retrying {
		return false
	}
	s.commitAttempt()
	s.recvAttempt, a.answered = a, true
	return true
}

// transmit sends f on the current attempt. st is the step that repeats f.
func (s *clientStream) transmit(f *link.Frame, st *step) error {
	for {
		a := s.sendAttempt
		if a == nil {
			a, _ = s.currentAttempt()
		}
		err := a.stream.Send(f)
		if err != nil && st.hasMsg {
			another, lost := s.onSendError(a, err)
			if lost != nil {
				return lost
			}
			if another {
				continue
			}
		}
		if err == nil && st.hasMsg {
			a.stats.sent(st.value, &st.msg)
		}
		if s.bufferForReplay(a, st, err) {
			return err
		}
	}
}

// encodeForReplay encodes m if the user may change it before it is sent again, or its codec could
// not encode it again. The bytes are immutable.
func (s *clientStream) encodeForReplay(m *link.Message) error {
	if s.sendAttempt != nil || s.info.unary() && s.info.codec == codec.Proto() || s.info.codec == codec.Shared() {
		return nil // a request does not change before Invoke returns, and a shared message never changes
	}
	a, replayable := s.currentAttempt()
	if !replayable {
		s.sendAttempt, s.replayMemory = a, replayMemory{}
		return nil
	}
	if s.info.desc.ClientStreams {
		return s.replayMemory.encode(m)
	}
	return encode(m)
}

// bufferForReplay adds st, which was sent on a with the result err, to the replay buffer.
// It returns false if a was or is being replaced: st must be sent again. An EndSend is
// kept even if it could not be sent, because the user does not repeat it.
func (s *clientStream) bufferForReplay(a *attempt, st *step, err error) bool {
	if s.sendAttempt != nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != a || s.retrying {
		return false
	}
	if s.committed || err != nil && st.hasMsg {
		return true
	}
	if st.hasMsg && !s.info.unary() {
		n, _ := st.msg.Size() // no error: it could be sent
		if s.replayBufferSize += n + link.MessageOverhead; s.replayBufferSize > s.info.maxReplay {
			s.commitAttempt()
			return true
		}
	}
	s.replayBuffer = append(s.replayBuffer, *st)
	return true
}

// replayTooLarge reports whether the request of a unary call exceeds the replay limit,
// which bufferForReplay does not check for unary calls. mu is held.
func (s *clientStream) replayTooLarge() bool {
	return s.info.unary() && len(s.replayBuffer) > 0 && !fitsReplay(&s.replayBuffer[0].msg, s.info.maxReplay)
}

// fitsReplay reports whether m fits a replay buffer of limit bytes.
func fitsReplay(m *link.Message, limit int) bool {
	n, err := m.Size()
	return err == nil && n+link.MessageOverhead <= limit
}

// A replayMemory has the encoded messages that a client stream keeps for replay, one after the
// other in few pieces of memory. Separately each message would take several pieces.
type replayMemory struct{ last []byte } // the piece that is being filled

const (
	firstReplayPiece = 512
	maxReplayPiece   = 32 << 10

	// roomToEncode is enough to encode small messages without knowing their size.
	roomToEncode = 4 << 10
)

// encode is like the function encode, but puts small messages into r's memory.
func (r *replayMemory) encode(m *link.Message) error {
	if m.Bound() > 0 {
		return nil // it is encoded
	}
	for range 2 {
		at := len(r.last)
		if b, ok := m.AppendWithin(r.last); ok {
			r.last = b
			*m = link.EncodedBytes(b[at:len(b):len(b)])
			return nil
		}
		if cap(r.last)-at >= roomToEncode {
			break
		}
		r.last = make([]byte, 0, min(max(4*cap(r.last), firstReplayPiece), maxReplayPiece))
	}
	return encode(m)
}
