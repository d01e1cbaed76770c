package mux

import (
	"encoding/binary"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

// Packed messages.
//
// A queued message takes as much credit as it has bytes, plus wire.MessageCost. For a small
// message, an item and a buffer take many times as much memory, and a peer could exhaust memory
// with calls that are never read. So while messages are queued, the inbox packs small messages
// behind the item of the message before them: a varint with the size and whether it is
// compressed, then the message. The queued messages of a call thus take no more memory than a
// small multiple of their credit.
//
// The receiver takes all that is packed behind a message together with it, and receives
// it without the session's lock, which the session's reader needs for each frame.
//
// For the reply of a unary call nothing is packed behind the first message: Invoke looks
// for a second one.

// maxPacked is the size of the largest message that is packed. From maxPack on, what is packed
// behind one item takes no further message. Both are in bytes.
const (
	maxPacked = 4 << 10
	maxPack   = 32 << 10
)

// packs reports whether a message of n bytes is packed behind Items[i], the last item
// before it. The message in Items[i] is complete, because the pieces of a message
// arrive in sequence.
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
	ends     bool    // the item before them still has a half-close or the end
	spent    int     // credit of messages that were received, not yet returned
	due      int     // the amount of spent at which it is returned
}

// takePack takes the messages that are packed behind it, the first item. The item's own message
// was removed before. The session's mu is held.
func (st *stream) takePack(it *item) {
	t := &st.unpacked
	t.pack, t.at, t.encoding = it.Extra.behind, 0, st.in.Encoding
	t.ends = it.HalfClose || it.End != nil
	t.due = st.in.flow.Due()
}

// returnSpent returns the credit of packed messages that were received. The session's mu is
// held.
func (st *stream) returnSpent() {
	if n := st.unpacked.spent; n > 0 {
		st.unpacked.spent, st.unpacked.due = 0, st.in.flow.HoldsBack()
		st.removeUnread(n)
		st.returnCredit(n)
		if len(st.session.writing.control) > 0 {
			st.session.wakeWriter()
		}
	}
}

// receivePacked receives the next of the taken messages into f, and the half-close or end
// that follows the last of them, unless the message cannot be decoded.
func (st *stream) receivePacked(f *link.Frame) error {
	t := &st.unpacked
	head, n := binary.Uvarint(t.pack.B[t.at:])
	begin := t.at + n
	size := int(head >> 1)
	t.at = begin + size
	message := t.pack.B[begin:t.at:t.at]
	var err error
	if size > f.Limit { // as in gRPC, the limit applies to the compressed size, too
		err = &link.RecvError{Size: size, Limit: f.Limit}
	} else if err = f.DecodeBytes(message, head&1 != 0, t.encoding); err == nil {
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
		st.returnSpent()
		if last && t.ends && err == nil {
			st.receiveEnd(f)
		}
		s.mu.Unlock()
	}
	return err
}
