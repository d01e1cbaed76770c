package encoded

import "github.com/nearcall/nearcall/internal/link"

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
		case it.Message && it.Size > c.Limit:
			return in.take(n), &link.RecvError{Size: it.Size, Limit: c.Limit}
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
		to := link.Sink{Dst: c.Reply, Codec: c.Codec, Limit: c.Limit}
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
