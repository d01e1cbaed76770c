package quic

import (
	"errors"
	"math"
	"sync/atomic"

	q "github.com/quic-go/quic-go"

	"github.com/nearcall/nearcall/internal/encoded"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
	"github.com/nearcall/nearcall/internal/wire"
)

// Sending.
//
// The sender never blocks within quic-go, so that ends and headers never wait. It passes to quic-go
// only what quic-go takes at once. A separate goroutine writes the rest, and the next message
// waits until that goroutine is done. Ends and headers do not wait: the same goroutine writes
// them, too.

// maxUnsent bounds the bytes of a call that are passed to quic-go without waiting. A write that
// would exceed it waits until quic-go has put the earlier bytes into packets. The peer's credit is
// no bound: a peer may grant any amount.
const maxUnsent = 64 << 10

// maxTry is the largest write that the sender passes to quic-go itself, in bytes. quic-go copies
// such a write into new memory. Bytes that the stream's own goroutine writes are sent without a
// copy.
const maxTry = 32 << 10

// sending is the sending direction of a stream. Guarded by the stream's mu.
type sending struct {
	err     error           // why nothing more can be sent
	writing bool            // a goroutine writes
	stopped bool            // the peer reads no more; the stream is about to read the reason
	pending *encoded.Buffer // the next bytes for the writing goroutine; nil for none
	fin     bool            // nothing follows
	closed  bool            // the FIN was passed to quic-go
	unsent  int             // bytes passed to quic-go since a write last waited
	sender  wait.Cond
}

func (st *stream) Send(f *link.Frame) error {
	step := wire.Step{Stream: 1, Header: f.Header, HalfClose: f.EndSend, End: f.End}
	if name, ok := encoded.EncodingOf(f.Header); ok { // no message is sent before the header
		st.sends = name
	}
	if f.HasMsg {
		message, compressed, err := encoded.Encode(&f.Msg, st.sends)
		if err != nil {
			return err
		}
		defer message.Free() // send copies it
		step.HasMessage, step.Message, step.Compressed = true, message.B, compressed
	}
	if err := encoded.CheckBlocks(f, st.session.maxBlock()); err != nil {
		st.abort(err, true) // the caller learns why
		return err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	for f.HasMsg && st.out.err == nil && (st.out.writing || st.out.stopped) {
		st.out.sender.Wait(&st.mu, nil)
	}
	if st.out.err != nil {
		return st.out.err
	}
	if f.End != nil && st.reason != nil { // the callee is being told of the abort, and then the peer gets the reason
		return st.reason
	}
	if f.End != nil {
		st.ended = true
		st.out.err = link.ErrEnded
		st.in.Close(link.ErrEnded)
		st.wakeLocked()
	}
	if !step.Done() {
		st.sendLocked(&step)
	}
	return nil
}

// maxBlock returns the largest block that the peer accepts.
func (s *session) maxBlock() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hello.Block
}

// frameRoom is room for the frames of most steps, in addition to their message, in bytes.
const frameRoom = 256

// sendLocked sends step, or leaves it to the goroutine that writes.
func (st *stream) sendLocked(step *wire.Step) {
	order.Add(1)
	last := step.HalfClose || step.End != nil
	b := st.out.pending
	if b == nil {
		b = encoded.NewBuffer(len(step.Message) + frameRoom)
	}
	e := wire.Encoder{Literal: true}
	for !step.Done() {
		b.B, _ = e.Append(b.B, step, math.MaxInt) // the credit is QUIC's
	}
	st.out.fin = st.out.fin || last
	if st.out.writing {
		st.out.pending = b
		return
	}
	if last && !st.caller {
		st.session.mu.Lock()
		st.session.releaseSpentLocked()
		st.session.mu.Unlock()
	}
	if st.out.unsent += len(b.B); st.out.unsent <= maxUnsent && len(b.B) <= maxTry {
		err := st.qs.TryWriteAll(b.B)
		if err == nil {
			b.Free()
			st.sentLocked()
			return
		}
		if !errors.Is(err, q.ErrWouldBlock) {
			b.Free()
			st.stopLocked()
			return
		}
	}
	st.out.writing = true
	go st.write(b)
}

// write writes b, and bytes that are queued meanwhile.
func (st *stream) write(b *encoded.Buffer) {
	for {
		err := st.writeAll(b.B)
		b.Free()
		st.mu.Lock()
		if err != nil {
			st.out.writing = false
			st.out.pending.Free()
			st.out.pending = nil
			st.stopLocked()
			st.mu.Unlock()
			return
		}
		if b, st.out.pending = st.out.pending, nil; b == nil {
			st.out.writing, st.out.unsent = false, 0
			st.sentLocked()
			wait.Unpark(st.out.sender.Wake())
			st.mu.Unlock()
			return
		}
		st.mu.Unlock()
	}
}

// lastPiece is how many bytes at the end of a long write are passed to quic-go separately. quic-go
// buffers them, so that the FIN that follows fits into the same packet.
const lastPiece = 1000

// writeAll writes b. If this side is the callee, writeAll counts the bytes of b that the peer
// takes.
func (st *stream) writeAll(b []byte) error {
	if n := len(b) - lastPiece; n > 0 && !st.caller {
		if _, err := st.qs.WriteWithLimit(b[:n], st.session.noteTaken); err != nil {
			return err
		}
		b = b[n:]
	}
	_, err := st.qs.Write(b)
	return err
}

// noteTaken records that quic-go puts n bytes into a packet. It limits nothing.
func (s *session) noteTaken(n int) int {
	s.taken.Add(int64(n))
	return n
}

// sentLocked is called when everything that was queued has been passed to quic-go.
func (st *stream) sentLocked() {
	if !st.out.fin || st.out.closed {
		return
	}
	if !st.caller && st.unwatch != nil {
		st.unwatch() // before Close ends the stream's context
	}
	st.closeSendLocked()
	if !st.caller {
		st.qs.CancelRead(0) // no effect if all was read
		st.forgetLocked()
	}
}

// closeSendLocked sends the FIN.
func (st *stream) closeSendLocked() {
	st.out.closed = true
	_ = st.qs.Close()
}

// stopLocked records that the peer reads no more. A caller learns the reason when it receives,
// because the callee's request to stop can overtake the end of the call.
func (st *stream) stopLocked() {
	st.out.stopped = true
	if st.ended && !st.caller {
		st.forgetLocked()
	}
}

// order tells the race detector, if both peers are in one process, that a send happens before the
// receive. For other sockets package syscall does so. Nothing else does so for QUIC's packets.
// Without order the detector would report programs that are correct over tcp:.
var order atomic.Uint64
