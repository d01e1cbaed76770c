package encoded

import (
	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/wire"
)

// An Inbox holds the frames of a call that have arrived and were not received yet. mux and quic
// have one for each call. They lock it, and keep an Extra with each item. The HTTP/1 transport
// has none, because it queues bytes, and splits them into messages when these are received.
//
// Invariants: only the last item may have an unfinished message, and only the last may have no
// message.
type Inbox[Extra any] struct {
	Err      error // why nothing arrives after Items; nil while more may
	Items    []Item[Extra]
	one      [1]Item[Extra] // backing array of Items while there is only one
	Encoding string         // the compressor of messages: the one in the callee's header, or the call's
	Skip     int            // bytes of a refused message that are still to arrive
	header   bool           // the peer's header has arrived
	Closed   bool           // the peer has sent its half-close or the end
}

// An Item holds parts of one or more steps that have arrived and were not received yet. Recv
// returns its parts in the order of the fields.
type Item[Extra any] struct {
	Header     metadata.MD
	Message    bool
	Compressed bool
	HalfClose  bool
	End        *link.End
	Extra      Extra
	Data       *Buffer // the bytes of the message so far; nil if there are none
	Size       int     // size of the whole message, in bytes
	Missing    int     // bytes still to arrive
}

// Check returns an error if a step breaks a rule of order or size. The other methods take only
// steps that Check has accepted.
func (in *Inbox[Extra]) Check(rc *wire.Received) error {
	left := in.missing()
	message := rc.Begins || rc.Goes
	switch {
	case rc.Header != nil && in.header:
		return wire.ProtocolError("the header of a call comes twice")
	case rc.Header != nil && left > 0:
		return wire.ProtocolError("the header of a call comes within a message")
	case message && in.Closed:
		return wire.ProtocolError("a message comes after the end of sending")
	case message && rc.Begins == (left > 0):
		return wire.ProtocolError("the pieces of a message are out of order")
	case rc.HalfClose && in.Closed:
		return wire.ProtocolError("the end of sending comes twice")
	case (rc.HalfClose || rc.End != nil) && left > 0 && !message:
		return wire.ProtocolError("the end comes within a message")
	}
	if rc.Begins {
		left = rc.Size
	}
	if n := len(rc.Data); message && !rc.Placed && (n > left || (n == left) == rc.More) {
		return wire.ProtocolError("the pieces of a message are not of its size")
	}
	return nil
}

// missing returns how many bytes of the last message are still to arrive.
func (in *Inbox[Extra]) missing() int {
	if it := in.Last(); it != nil {
		return in.Skip + it.Missing // one of them is zero
	}
	return in.Skip
}

// MidMessage reports whether pieces of a message are still to arrive. Nothing else may arrive
// before them.
func (in *Inbox[Extra]) MidMessage() bool { return in.missing() > 0 }

// Last returns the last item, or nil if there is none.
func (in *Inbox[Extra]) Last() *Item[Extra] {
	if n := len(in.Items); n > 0 {
		return &in.Items[n-1]
	}
	return nil
}

func (in *Inbox[Extra]) push(it Item[Extra]) *Item[Extra] {
	if in.Items == nil {
		in.Items = in.one[:0]
	}
	in.Items = append(in.Items, it)
	return in.Last()
}

func (in *Inbox[Extra]) pop() {
	in.Items[0] = Item[Extra]{}
	if in.Items = in.Items[1:]; len(in.Items) == 0 {
		in.Items = nil
	}
}

// AddHeader adds the header of a step, if it has one.
func (in *Inbox[Extra]) AddHeader(rc *wire.Received) {
	if rc.Header == nil {
		return
	}
	in.header = true
	if name, ok := EncodingOf(rc.Header); ok {
		in.Encoding = name
	}
	in.push(Item[Extra]{Header: rc.Header})
}

// AddMessage adds the message of a step, or a piece of it, and returns its item, or nil if the
// message was refused.
func (in *Inbox[Extra]) AddMessage(rc *wire.Received, k *Keeper) *Item[Extra] {
	if in.Skip > 0 {
		in.Skip -= len(rc.Data)
		return nil
	}
	it := in.Last()
	if rc.Begins {
		it = in.Begin(rc.Size, rc.Compressed)
	}
	it.Add(rc.Data, k)
	return it
}

// Begin adds a message of which nothing has arrived yet, and returns its item.
func (in *Inbox[Extra]) Begin(size int, compressed bool) *Item[Extra] {
	it := in.Last()
	if it == nil || it.Message {
		it = in.push(Item[Extra]{})
	}
	it.Message, it.Compressed, it.Size, it.Missing = true, compressed, size, size
	return it
}

// Add appends a piece of the message.
func (it *Item[Extra]) Add(piece []byte, k *Keeper) {
	if len(piece) > 0 {
		it.Missing -= len(piece)
		it.Data = k.Add(it.Data, piece, it.Size, it.Compressed)
	}
}

// AddEnd adds the half-close or the end of a step, if it has one.
func (in *Inbox[Extra]) AddEnd(rc *wire.Received) {
	if !rc.HalfClose && rc.End == nil {
		return
	}
	in.Closed = true
	it := in.Last()
	if it == nil {
		it = in.push(Item[Extra]{})
	}
	it.HalfClose, it.End = rc.HalfClose, rc.End
}

// Close ends the inbox: nothing more arrives. The parameter why is the reason. Frames that have
// arrived can still be received, except an unfinished message.
func (in *Inbox[Extra]) Close(why error) {
	if in.Err == nil {
		in.Err = why
	}
	in.DropPartial()
}

// DropPartial drops an unfinished message.
func (in *Inbox[Extra]) DropPartial() {
	if it := in.Last(); it != nil && it.Missing > 0 {
		it.Data.Free()
		it.Message, it.Data, it.Missing = false, nil, 0
		if it.Header == nil {
			in.Items = in.Items[:len(in.Items)-1]
		}
	}
}

// Next receives into f the header of the first item, if it has one, and the half-close or the end
// if the item has no message. If done is set, Recv returns err. Otherwise Next returns the item of
// the first message, or nil if nothing has arrived. That message may be too large for f, may still
// be arriving, or may be complete.
func (in *Inbox[Extra]) Next(f *link.Frame) (it *Item[Extra], done bool, err error) {
	if len(in.Items) == 0 {
		return nil, in.Err != nil, in.Err
	}
	it = &in.Items[0]
	if it.Header != nil {
		f.Header, it.Header = it.Header, nil
	}
	if !it.Message {
		in.TakeEnd(f)
		return nil, true, nil
	}
	keep := f.Dst == nil || f.Header != nil && it.Missing > 0 // the message stays for the next Recv
	return it, keep, nil
}

// TakeEnd receives the half-close or the end from the first item, whose message was removed, and
// removes it.
func (in *Inbox[Extra]) TakeEnd(f *link.Frame) {
	f.EndSend, f.End = in.Items[0].HalfClose, in.Items[0].End
	in.pop()
}

// RemoveMessage removes the message from the first item, and the item if it has nothing else. It
// returns the item as it was. Pieces of the message that have not arrived yet are skipped.
func (in *Inbox[Extra]) RemoveMessage() Item[Extra] {
	first := &in.Items[0]
	it := *first
	in.Skip = it.Missing
	if it.HalfClose || it.End != nil {
		*first = Item[Extra]{HalfClose: it.HalfClose, End: it.End}
	} else {
		in.pop()
	}
	return it
}

// Replied reports whether the caller of a unary call can stop waiting. limit is the size of the
// largest reply that the caller receives, in bytes. The caller can stop if the call has ended, or
// if the peer has sent a message that is too large or a complete second message.
func (in *Inbox[Extra]) Replied(limit int) bool {
	if in.Err != nil {
		return true
	}
	for i := range in.Items {
		it := &in.Items[i]
		if it.Message && (it.Size > limit || i > 0 && it.Missing == 0) {
			return true
		}
	}
	return false
}

// Collect collects the results of a unary call for which Replied is true. It sets c.Header and
// c.End, and returns the replies for DecodeReplies. If wrong is set, the caller must abort the
// call. A call that was aborted before stays as it is. The remaining Items are never received.
func (in *Inbox[Extra]) Collect(c *link.UnaryCall) (replies []Item[Extra], wrong error) {
	for n := range in.Items {
		it := &in.Items[n]
		if it.Header != nil {
			c.Header = it.Header
		}
		switch {
		case it.Message && it.Size > c.MaxReply:
			return in.take(n), &message.RecvError{Size: it.Size, Limit: c.MaxReply}
		case it.Message && n > 0:
			return in.take(n + 1), link.ErrReplies
		case it.End != nil:
			c.End = *it.End
			if it.Message {
				n++
			}
			return in.take(n), nil
		}
	}
	return nil, in.Err
}

// take removes the first n items and returns them. It does not copy them.
func (in *Inbox[Extra]) take(n int) []Item[Extra] {
	taken := in.Items[:n]
	in.Items = in.Items[n:]
	return taken
}

// DecodeReplies decodes replies into c.Reply, one after the other, and returns the error of the
// call. wrong comes from Collect. lost says why the next reply cannot be read; it is nil if there
// is no next reply.
func (in *Inbox[Extra]) DecodeReplies(c *link.UnaryCall, replies []Item[Extra], lost, wrong error) error {
	var unfit error // of the first reply that cannot be decoded
	for i := range replies {
		it := &replies[i]
		to := message.Sink{Dst: c.Reply, Codec: c.Codec, Limit: c.MaxReply}
		err := Decode(it.Data, it.Compressed, in.Encoding, &to)
		c.ReplySize = to.Size
		if unfit == nil {
			unfit = err
		}
	}
	if unfit == nil {
		unfit = lost
	}
	switch {
	case wrong == nil:
		c.ReplyError, c.Replied = unfit, len(replies) > 0 && unfit == nil
		return nil
	case unfit != nil: // the error of an earlier reply wins
		return unfit
	}
	return wrong
}
