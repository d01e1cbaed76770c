package mux

import (
	"context"

	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/encoded"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
	"github.com/nearcall/nearcall/internal/wire"
)

// An inbox holds what has arrived of a call and was not received yet. Guarded by the
// session's mu.
type inbox struct {
	err      error // why nothing arrives after items; nil while more may
	items    []item
	one      [1]item // backing array of items while there is only one
	window   int     // how much may be sent and not received, or not returned, in bytes; see credit.go
	credit   int     // credit that the peer has left
	taken    int     // credit of received messages, not yet returned
	advance  int     // credit granted beyond the window for one message, deducted from later returns
	unread   int     // see unread.go
	skip     int     // bytes of a refused message that are still to arrive
	unary    bool    // of a call of this side that expects one message
	header   bool    // the peer's header has arrived
	closed   bool    // the peer has half-closed
	receiver wait.Cond
}

// An item is a step that has arrived and was not received yet. Its parts are received
// in the order of the fields, as in a frame.
type item struct {
	header     metadata.MD
	message    bool
	compressed bool
	halfClose  bool
	counts     bool // the message is counted in unread
	end        *link.End
	data       *buffer // the bytes of the message so far; nil if there are none
	size       int     // size of the whole message, in bytes
	missing    int     // bytes still to arrive; zero except for the last item
	place      *place  // where the whole message is; nil if it came through the connection
	behind     *buffer // packed messages that follow this one and precede halfClose and end; nil if there are none
}

// add appends a piece of the message.
func (it *item) add(piece []byte, k *encoded.Keeper) {
	it.missing -= len(piece)
	it.data = k.Add(it.data, piece, it.size, it.compressed)
}

func (in *inbox) push(it item) {
	if in.items == nil {
		in.items = in.one[:0]
	}
	in.items = append(in.items, it)
}

// close ends the inbox: nothing arrives any more, because of why. What has arrived can
// still be received, except an unfinished message.
func (in *inbox) close(why error) {
	if in.err == nil {
		in.err = why
	}
	in.dropPartial()
}

// dropPartial drops an unfinished message.
func (in *inbox) dropPartial() {
	if it := in.last(); it != nil && it.missing > 0 {
		it.data.Free()
		it.message, it.data, it.missing = false, nil, 0
		if it.header == nil {
			in.items = in.items[:len(in.items)-1]
		}
	}
}

// midMessage reports whether pieces of a message are still to arrive. The message is
// the last item, unless it was refused: only its pieces may follow.
func (in *inbox) midMessage() bool {
	it := in.last()
	return in.skip > 0 || it != nil && it.missing > 0
}

func (in *inbox) last() *item {
	if n := len(in.items); n > 0 {
		return &in.items[n-1]
	}
	return nil
}

// deliver handles a step that has arrived, whose message costs that much credit. An
// error ends the session. The session's mu is held.
func (st *stream) deliver(rc *wire.Received, cost int, after *callbacks) error {
	in := &st.in
	if rc.Header != nil {
		if in.header {
			return protocolError("the header of a call comes twice")
		}
		if in.midMessage() {
			return protocolError("the header of a call comes within a message")
		}
		in.header = true
		if name, ok := encoded.EncodingOf(rc.Header); ok {
			st.receives = name
		}
		in.push(item{header: rc.Header})
	}
	if rc.Begins || rc.Goes {
		if err := st.deliverMessage(rc, cost); err != nil {
			return err
		}
	}
	if rc.HalfClose {
		if in.closed {
			return protocolError("the end of sending comes twice")
		}
		if in.midMessage() {
			return protocolError("the end of sending comes within a message")
		}
		in.closed = true
		if last := in.last(); last != nil {
			last.halfClose = true
		} else {
			in.push(item{halfClose: true})
		}
	}
	if rc.End != nil {
		if in.midMessage() {
			return protocolError("a call ends within a message")
		}
		rc.End.Late = link.Passed(st.deadline)
		if last := in.last(); last != nil {
			last.end = rc.End
		} else {
			in.push(item{end: rc.End})
		}
		st.dropQueued()
		st.endBoth(link.ErrEnded, after)
	}
	if !rc.Goes || !in.midMessage() { // a receiver has no use for a piece in the middle
		after.unpark(st.session.wake(&in.receiver))
	}
	return nil
}

// deliverMessage handles a message or a piece of one. The session's mu is held.
func (st *stream) deliverMessage(rc *wire.Received, cost int) error {
	in := &st.in
	if in.closed {
		return protocolError("a message comes after the end of sending")
	}
	due := cost
	if rc.Placed { // its size may exceed the credit that is left
		due = wire.MessageCost
	}
	if due > in.credit {
		return protocolError("the peer sends more of a call than it has credit for")
	}
	in.credit -= cost
	switch {
	case rc.Begins == in.midMessage():
		return protocolError("the pieces of a message are out of order")
	case in.skip > 0:
		in.skip -= len(rc.Data)
		if in.skip < 0 || (in.skip == 0) == rc.More {
			return protocolError("the pieces of a message are not of its size")
		}
		st.returnCredit(cost)
		return nil
	case rc.Begins:
		if !rc.More && !rc.Placed && in.pack(rc.Data, rc.Compressed) {
			st.addUnread(cost)
			return nil
		}
		if last := in.last(); last == nil || last.message {
			in.push(item{})
		}
		last := in.last()
		last.message, last.compressed, last.size, last.missing = true, rc.Compressed, rc.Size, rc.Size
		if rc.Placed {
			last.missing = 0
			var err error
			last.place, err = st.session.placeOf(rc)
			return err
		}
		last.counts = true
	}
	last := in.last()
	if n := len(rc.Data); n > last.missing || (n == last.missing) == rc.More {
		return protocolError("the pieces of a message are not of its size")
	}
	if len(rc.Data) > 0 {
		last.add(rc.Data, &st.session.keeper)
	}
	if last.counts {
		st.addUnread(cost)
		if rc.Goes {
			in.packLast()
		}
	}
	return nil
}

// Recv implements [link.Stream].
func (st *stream) Recv(f *link.Frame) error {
	f.Reset()
	if st.unpacked.pack != nil {
		if f.Dst == nil {
			return nil // keep the message for the next Recv
		}
		return st.receivePacked(f)
	}
	s, in := st.session, &st.in
	s.mu.Lock()
	st.answers = true
	for {
		if len(in.items) == 0 {
			if err := in.err; err != nil {
				s.mu.Unlock()
				return err
			}
			_ = s.await(context.Background(), st, &in.receiver)
			continue
		}
		it := &in.items[0]
		if it.header != nil {
			f.Header, it.header = it.header, nil
		}
		switch {
		case !it.message:
			st.receiveEnd(f)
			s.mu.Unlock()
			return nil
		case f.Dst == nil, f.Header != nil && it.missing > 0:
			s.mu.Unlock()
			return nil // keep the message for the next Recv
		case it.size > f.Limit: // as in gRPC, the limit applies to the compressed size, too
			err := &link.RecvError{Size: it.size, Limit: f.Limit}
			st.discardMessage()
			s.flush(false)
			return err
		case it.missing == 0:
			return st.receiveMessage(f)
		}
		if st.grantForMessage(it) {
			s.flush(false)
			s.mu.Lock()
			continue
		}
		_ = s.await(context.Background(), st, &in.receiver)
	}
}

// receiveEnd receives the half-close or the end of the call from the first item, and
// removes it. The session's mu is held.
func (st *stream) receiveEnd(f *link.Frame) {
	it := &st.in.items[0]
	f.EndSend, f.End = it.halfClose, it.end
	if it.end != nil {
		st.ended = true
	}
	st.in.pop()
}

func (in *inbox) pop() {
	in.items[0] = item{}
	if in.items = in.items[1:]; len(in.items) == 0 {
		in.items = nil
	}
}

// removeMessage removes the message from the first item, and takes what is packed behind it.
// If the item has nothing else, it is removed. The session's mu is held.
func (st *stream) removeMessage() {
	it := &st.in.items[0]
	it.message, it.data, it.missing, it.place = false, nil, 0, nil
	if it.behind != nil {
		st.takePack()
	}
	if !it.halfClose && it.end == nil {
		st.in.pop()
	}
}

// discardMessage drops the first message. Pieces that have not arrived yet are skipped.
// The session's mu is held.
func (st *stream) discardMessage() {
	in := &st.in
	it := in.items[0]
	st.markReceived(&it)
	it.data.Free()
	it.place.drop()
	in.skip = it.missing
	st.removeMessage()
	st.returnCredit(it.size - it.missing + wire.MessageCost)
}

// receiveMessage decodes the first message, which is complete, into f and returns its
// credit. It also receives the half-close or end that follows the message, unless the
// message cannot be decoded. Called with the session's mu held, which it releases.
func (st *stream) receiveMessage(f *link.Frame) error {
	s, in := st.session, &st.in
	it := in.items[0]
	st.markReceived(&it)
	st.removeMessage()
	st.returnCredit(it.size + wire.MessageCost)
	encoding := st.receives
	large := st.waiter == nil && st.company.shouldYield(it.size, s.streamsBegun)
	if len(s.control) > 0 && it.place == nil { // otherwise fetch flushes it
		s.wakeWriter()
	}
	s.mu.Unlock()
	if err := it.fetch(); err != nil {
		return err
	}
	if err := encoded.Decode(it.data, it.compressed, encoding, &f.Sink); err != nil {
		return err
	}
	f.Got = true
	if it.behind == nil && (it.halfClose || it.end != nil) {
		s.mu.Lock()
		st.receiveEnd(f)
		s.mu.Unlock()
	}
	if large {
		giveWay()
	}
	return nil
}
