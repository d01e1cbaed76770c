package quic

import (
	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/encoded"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
	"github.com/nearcall/nearcall/internal/wire"
)

// Receiving.
//
// The pump of a stream moves what arrives into the stream's inbox, so that the end of the call is
// seen behind messages that nobody receives yet. A full inbox stops it; then the windows of QUIC
// fill, and the peer waits.

// itemCost is what a message takes in an inbox in addition to its bytes.
const itemCost = 128

// maxHeld bounds the messages in all inboxes of a connection, in bytes. Beyond it an inbox is full
// with minHeld bytes.
const (
	maxHeld = connWindow
	minHeld = 2 << 10
)

// maxUnread bounds the messages in a caller's inbox if its peer drains, in bytes. It has room for
// what is in the largest window of a stream, and for a message of gRPC's default limit that is
// still to come.
func (s *session) maxUnread() int { return 2 * max(s.window, maxWindow) }

// An inbox has what has arrived and was not received yet. Guarded by the stream's mu.
type inbox struct {
	err      error // why nothing arrives after items; nil while more may
	items    []item
	one      [1]item // backing array of items while there is only one
	encoding string  // the compressor of messages
	held     int     // bytes of messages, and itemCost for each
	skip     int     // bytes of a refused message that are still to arrive
	wanted   bool    // a receiver waits for the rest of a message
	header   bool    // the peer's header has arrived
	closed   bool    // the peer has sent its last frame
	answered bool    // the peer has sent a frame of the call, apart from the head that opens it
	receiver wait.Cond
	pump     wait.Cond
}

// An item is a step that has arrived and was not received yet. Its parts are received in the order
// of the fields.
type item struct {
	header     metadata.MD
	message    bool
	compressed bool
	halfClose  bool
	end        *link.End
	data       *encoded.Buffer // the bytes of the message so far; nil if there are none
	size       int             // of the whole message, in bytes
	missing    int             // bytes still to arrive; zero except for the last item
}

// add appends a piece of the message.
func (it *item) add(piece []byte, k *encoded.Keeper) {
	it.missing -= len(piece)
	it.data = k.Add(it.data, piece, it.size, it.compressed)
}

func (in *inbox) last() *item {
	if n := len(in.items); n > 0 {
		return &in.items[n-1]
	}
	return nil
}

func (in *inbox) push(it item) {
	if in.items == nil {
		in.items = in.one[:0]
	}
	in.items = append(in.items, it)
}

func (in *inbox) pop() {
	in.items[0] = item{}
	if in.items = in.items[1:]; len(in.items) == 0 {
		in.items = nil
	}
}

// close ends the inbox: nothing arrives any more, because of why. What has arrived can still be
// received, except an unfinished message.
func (in *inbox) close(why error) {
	if in.err == nil {
		in.err = why
	}
	if it := in.last(); it != nil && it.missing > 0 {
		it.data.Free()
		it.message, it.data, it.missing = false, nil, 0
		if it.header == nil {
			in.items = in.items[:len(in.items)-1]
		}
	}
}

// drop stops counting the inbox, whose stream has left the session. The stream's mu is held.
func (in *inbox) drop(st *stream) {
	st.session.held.Add(int64(-in.held))
	in.held = 0
}

// hold counts n bytes more, or less if n is negative. mu is held.
func (st *stream) hold(n int) {
	if !st.left {
		st.in.held += n
		st.session.held.Add(int64(n))
	}
}

// full reports whether the pump must wait. mu is held.
func (st *stream) full() bool {
	in := &st.in
	if in.wanted || in.err != nil {
		return false
	}
	limit := st.session.window
	if st.caller && st.session.peerDrains.Load() {
		limit = st.session.maxUnread()
	}
	return in.held >= limit || in.held >= minHeld && st.session.held.Load() >= maxHeld
}

// mayRead waits while the inbox is full. It returns false if nothing more is received.
func (st *stream) mayRead() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	for st.full() {
		st.in.pump.Wait(&st.mu, nil)
	}
	if st.in.err != nil && !st.in.closed {
		st.read.finished = true
		st.dropInput()
		return false
	}
	return true
}

// deliver puts a step into the inbox. The error says that the step breaks a rule.
func (st *stream) deliver(rc *wire.Received) error {
	order.Load()
	in := &st.in
	st.mu.Lock()
	defer func() {
		receiver := in.receiver.Wake()
		st.mu.Unlock()
		wait.Unpark(receiver)
	}()
	if rc.Open == nil {
		in.answered = true
		if st.caller {
			st.session.answered.Store(true)
		}
	}
	if in.err != nil {
		return nil // nobody receives any more
	}
	middle := in.skip > 0 || in.last() != nil && in.last().missing > 0
	switch {
	case rc.Header != nil && in.header:
		return protocolError("the header of a call comes twice")
	case rc.Header != nil && middle:
		return protocolError("the header of a call comes within a message")
	case rc.Begins && middle, rc.Goes && !middle:
		return protocolError("the pieces of a message are out of order")
	}
	if rc.Header != nil {
		in.header = true
		if name, ok := encoded.EncodingOf(rc.Header); ok {
			in.encoding = name
		}
		in.push(item{header: rc.Header})
	}
	if rc.Begins || rc.Goes {
		if err := st.deliverPiece(rc); err != nil {
			return err
		}
	}
	if !rc.HalfClose && rc.End == nil {
		return nil
	}
	last := in.last()
	if in.skip > 0 || last != nil && last.missing > 0 {
		return protocolError("a call ends within a message")
	}
	if last == nil {
		in.push(item{})
		last = in.last()
	}
	last.halfClose, last.end = rc.HalfClose, rc.End
	in.closed = true
	st.read.finished = true
	if rc.End != nil {
		rc.End.Late = link.Passed(st.deadline)
		st.callerEnded()
	}
	return nil
}

// deliverPiece handles a message or a piece of one. mu is held.
func (st *stream) deliverPiece(rc *wire.Received) error {
	in := &st.in
	n := len(rc.Data)
	if rc.Goes && in.skip > 0 {
		if in.skip -= n; in.skip < 0 || (in.skip == 0) == rc.More {
			return protocolError("the pieces of a message are not of its size")
		}
		return nil
	}
	if rc.Begins {
		if last := in.last(); last == nil || last.message {
			in.push(item{})
		}
		last := in.last()
		last.message, last.compressed, last.size, last.missing = true, rc.Compressed, rc.Size, rc.Size
		n += itemCost
	}
	last := in.last()
	if len(rc.Data) > last.missing || (len(rc.Data) == last.missing) == rc.More {
		return protocolError("the pieces of a message are not of its size")
	}
	if len(rc.Data) > 0 {
		last.add(rc.Data, &st.session.keeper)
	}
	st.hold(n)
	return nil
}

// callerEnded is called when the callee's end has arrived: nothing more is sent. mu is held.
func (st *stream) callerEnded() {
	if st.out.err == nil {
		st.out.err = link.ErrEnded
	}
	st.in.err = link.ErrEnded
	if !st.out.closed {
		st.qs.CancelWrite(0)
	}
	if !st.read.eof {
		st.qs.CancelRead(0)
	}
	st.forget()
	wait.Unpark(st.out.sender.Wake())
}

// await waits until more has arrived. mu is held.
func (st *stream) await() {
	if !st.direct {
		st.in.receiver.Wait(&st.mu, st.waiter)
		return
	}
	st.mu.Unlock()
	st.next()
	st.mu.Lock()
}

// Recv implements [link.Stream].
func (st *stream) Recv(f *link.Frame) error {
	f.Reset()
	in := &st.in
	st.mu.Lock()
	for {
		if len(in.items) == 0 {
			if err := in.err; err != nil {
				st.mu.Unlock()
				return err
			}
			st.await()
			continue
		}
		it := &in.items[0]
		if it.header != nil {
			f.Header, it.header = it.header, nil
		}
		switch {
		case !it.message:
			st.receiveEnd(f)
			st.mu.Unlock()
			return nil
		case f.Dst == nil, f.Header != nil && it.missing > 0:
			st.mu.Unlock()
			return nil // keep the message for the next Recv
		case it.size > f.Limit: // as in gRPC, the limit applies to the compressed size, too
			err := &link.RecvError{Size: it.size, Limit: f.Limit}
			in.skip = it.missing
			it.data.Free()
			pump := st.removeMessage()
			st.mu.Unlock()
			wait.Unpark(pump)
			return err
		case it.missing == 0:
			return st.receiveMessage(f)
		}
		in.wanted = true
		wait.Unpark(in.pump.Wake())
		st.await()
		in.wanted = false
	}
}

// receiveMessage decodes the first message into f, and receives the end that follows it. Called
// with mu held, which it releases.
func (st *stream) receiveMessage(f *link.Frame) error {
	it := st.in.items[0]
	pump := st.removeMessage()
	encoding := st.in.encoding
	st.mu.Unlock()
	wait.Unpark(pump)
	if err := encoded.Decode(it.data, it.compressed, encoding, &f.Sink); err != nil {
		return err
	}
	f.Got = true
	if it.halfClose || it.end != nil {
		st.mu.Lock()
		st.receiveEnd(f)
		st.mu.Unlock()
	}
	return nil
}

// removeMessage removes the message from the first item, and the item if it has nothing else. It
// returns the Parker of the pump if that can go on. mu is held.
func (st *stream) removeMessage() wait.Parker {
	in := &st.in
	it := &in.items[0]
	st.hold(-(it.size - it.missing + itemCost))
	it.message, it.data, it.missing = false, nil, 0
	if !it.halfClose && it.end == nil {
		in.pop()
	}
	if st.full() {
		return nil
	}
	return in.pump.Wake()
}

// receiveEnd receives the half-close or the end of the call from the first item, and removes it.
// mu is held.
func (st *stream) receiveEnd(f *link.Frame) {
	it := &st.in.items[0]
	f.EndSend, f.End = it.halfClose, it.end
	if it.end != nil {
		st.ended = true
	}
	st.in.pop()
}
