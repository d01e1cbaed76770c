package mux

import (
	"context"

	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
	"github.com/nearcall/nearcall/internal/wire"
)

// An inbox is what has arrived of a call. It is guarded by the session's mu.
type inbox struct {
	err      error // after what is in nothing more arrives, because
	items    []item
	one      [1]item // where items mostly are
	window   int     // what the peer may send that was not received
	credit   int     // what the peer may still send
	taken    int     // credit to give back for messages that were received
	advance  int     // what was given back before, for a message that the window had no room for
	unread   int     // see unread.go
	skip     int     // bytes of a message that was refused and are still to come
	header   bool    // the header has arrived
	closed   bool    // the peer sends no more messages
	receiver wait.Cond
}

// An item is a step that waits to be received, of the parts that a frame has, in
// their order.
type item struct {
	header     metadata.MD
	message    bool
	compressed bool
	halfClose  bool
	counts     bool // as unread
	end        *link.End
	data       *buffer // of the message; nil where it is empty
	size       int     // of all of the message
	missing    int     // bytes that have not arrived yet: of the last item alone
	place      *place  // where all of it is; nil for what comes through the connection
	behind     []byte  // small messages that came after it, packed; halfClose and end come after them
}

// growth is how many times what has arrived of a message there is room for. A size
// is only said, and whoever says it need not send a byte: memory is taken as bytes
// come. A large message in frames of 64 KiB is copied a third of its length more for
// it, and one of up to 256 KiB not at all.
const growth = 4

// add adds a piece.
func (it *item) add(piece []byte) {
	it.missing -= len(piece)
	if it.data == nil {
		it.data = newBuffer(it.room(len(piece)))
	} else if need := len(it.data.b) + len(piece); need > cap(it.data.b) {
		it.data = it.data.grow(it.room(need))
	}
	it.data.b = append(it.data.b, piece...)
}

// room returns the capacity for the message, in bytes, once n of its bytes have arrived.
func (it *item) room(n int) int {
	if n > it.size/growth { // growth*n could overflow
		return it.size
	}
	return growth * n
}

func (in *inbox) push(it item) {
	if in.items == nil {
		in.items = in.one[:0]
	}
	in.items = append(in.items, it)
}

// end lets nothing more arrive.
func (in *inbox) close(why error) {
	if in.err == nil {
		in.err = why
	}
	in.dropPartial()
}

// dropPartial drops what has arrived of an unfinished message.
func (in *inbox) dropPartial() {
	if it := in.last(); it != nil && it.missing > 0 {
		it.data.free()
		it.message, it.data, it.missing = false, nil, 0
		if it.header == nil {
			in.items = in.items[:len(in.items)-1]
		}
	}
}

// midMessage reports whether more of a message has to come. It is then the last
// item, unless it was refused: nothing but its pieces may follow.
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

// deliver does what a step says that has arrived, whose message took the credit
// cost. An error ends the session, whose mu is held.
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
		if name, ok := encodingOf(rc.Header); ok {
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
		if last := in.last(); last != nil {
			last.end = rc.End
		} else {
			in.push(item{end: rc.End})
		}
		st.dropQueued()
		st.endBoth(link.ErrEnded, after)
	}
	if !rc.Goes || !in.midMessage() { // a piece in the middle is nothing to wait for
		st.session.wake(&in.receiver, after)
	}
	return nil
}

// deliverMessage takes a message or a piece of one.
func (st *stream) deliverMessage(rc *wire.Received, cost int) error {
	in := &st.in
	if in.closed {
		return protocolError("a message comes after the end of sending")
	}
	due := cost
	if rc.Placed { // it may take more than there is
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
		if in.pack(rc) {
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
		last.add(rc.Data)
	}
	if last.counts {
		st.addUnread(cost)
		if rc.Goes {
			in.packLast()
		}
	}
	return nil
}

// returnCredit tells the peer that n bytes were received, once that is worth a
// frame. The session's mu is held.
func (st *stream) returnCredit(n int) {
	in := &st.in
	early := min(in.advance, n)
	in.advance -= early
	if in.taken += n - early; in.taken >= in.window/2 {
		st.grantCredit(in.taken)
		in.taken = 0
	}
}

// grantCredit gives n bytes of credit to the peer, if it has a use for them. The
// session's mu is held.
func (st *stream) grantCredit(n int) {
	s := st.session
	if s.streams[st.id] == st && !st.in.closed && st.in.err == nil {
		st.in.credit += n
		s.control = wire.AppendCredit(s.control, st.id, int64(n))
	}
}

// Recv implements [link.Stream].
func (st *stream) Recv(f *link.Frame) error {
	f.Reset()
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
			return nil // it stays for a receiver that wants it
		case it.size > f.Limit: // as in gRPC, of compressed messages too
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

// grantForMessage sees to it that the rest of a message that is wanted can come, and after
// all of it another: a unary call takes its reply when it is over, and a second
// reply, for which the first has left no credit, is what ends it. It reports
// whether there is credit to be written. The session's mu is held.
func (st *stream) grantForMessage(it *item) bool {
	if it.missing == 0 {
		if st.in.credit > 0 {
			return false
		}
		st.grantCredit(it.size + wire.MessageCost)
		return true
	}
	before := len(st.session.control)
	st.markReceived(it)
	short := it.missing - st.in.credit
	if short <= 0 {
		return len(st.session.control) > before
	}
	if !st.growWindow(short) {
		st.in.advance += short
		st.grantCredit(short)
	}
	return true
}

// growWindow doubles the window, or lets it grow by least bytes where that is more,
// because the receiver waits for what the peer has no credit for. It reports
// whether it may be so large. The session's mu is held.
func (st *stream) growWindow(least int) bool {
	in := &st.in
	room := st.session.opts.MaxWindow - in.window
	if room <= 0 || room < least {
		return false
	}
	n := min(max(least, in.window), room)
	in.window += n
	st.grantCredit(n)
	return true
}

// receiveEnd receives what is left of the first item: the peer's end, or of what it
// sends. The session's mu is held.
func (st *stream) receiveEnd(f *link.Frame) {
	it := &st.in.items[0]
	f.EndSend, f.End = it.halfClose, it.end
	if it.end != nil {
		st.over = true
	}
	st.in.pop()
}

func (in *inbox) pop() {
	in.items[0] = item{}
	if in.items = in.items[1:]; len(in.items) == 0 {
		in.items = nil
	}
}

// removeMessage takes the message out of the first item, for the next that is packed there,
// and the item if that was all of it. The session's mu is held.
func (in *inbox) removeMessage() {
	it := &in.items[0]
	it.message, it.data, it.missing, it.place = false, nil, 0, nil
	if !it.unpack() && !it.halfClose && it.end == nil {
		in.pop()
	}
}

// discardMessage throws the first message away, as much of it as has arrived and the
// rest when it does. The session's mu is held.
func (st *stream) discardMessage() {
	in := &st.in
	it := in.items[0]
	st.markReceived(&it)
	it.data.free()
	it.place.drop()
	in.skip = it.missing
	in.removeMessage()
	st.returnCredit(it.size - it.missing + wire.MessageCost)
}

// receiveMessage puts the first message, which is there, where f says, and gives its
// credit back. What the item has beside it comes along, unless the message
// cannot be taken. The session's mu is held, and released.
func (st *stream) receiveMessage(f *link.Frame) error {
	s, in := st.session, &st.in
	it := in.items[0]
	st.markReceived(&it)
	in.removeMessage()
	st.returnCredit(it.size + wire.MessageCost)
	encoding := st.receives
	large := st.waiter == nil && st.company.shouldYield(it.size, s.streamsBegun)
	if len(s.control) > 0 && it.place == nil { // else fetching writes it
		s.wakeWriter()
	}
	s.mu.Unlock()
	if err := it.fetch(); err != nil {
		return err
	}
	if err := decode(it.data, it.compressed, encoding, &f.Sink); err != nil {
		return err
	}
	f.Got = true
	if len(it.behind) == 0 && (it.halfClose || it.end != nil) {
		s.mu.Lock()
		st.receiveEnd(f)
		s.mu.Unlock()
	}
	if large {
		giveWay()
	}
	return nil
}
