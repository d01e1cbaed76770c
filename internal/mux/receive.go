package mux

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
	"github.com/nearcall/nearcall/internal/wire"
)

// An inbox is what has arrived of a call. It is guarded by the session's mu.
type inbox struct {
	err      error // after what is in nothing more arrives, because
	items    []item
	credit   int  // what the peer may still send
	taken    int  // what is to be given back for messages that were received
	advance  int  // what was given back before, for a message that the window had no room for
	skip     int  // bytes of a message that was refused and are still to come
	header   bool // the header has arrived
	closed   bool // the peer sends no more messages
	receiver wait.Spot
}

// An item is a step that waits to be received.
type item struct {
	header     metadata.MD
	end        *link.End
	halfClose  bool
	message    bool
	compressed bool
	data       mem.BufferSlice
	small      []byte // the last pieces of data, which are small
	size       int    // of all of the message
	missing    int    // bytes that have not arrived yet: of the last item alone
}

// smallPiece is the length of pieces that are worth a buffer, in bytes.
const smallPiece = 1 << 10

// add adds a piece. Small ones share memory, so that a message takes about as
// much as it is long, in however many pieces it comes.
func (it *item) add(piece []byte) {
	it.missing -= len(piece)
	if len(piece) < smallPiece && (it.missing > 0 || it.small != nil) {
		it.small = append(it.small, piece...)
	} else {
		it.flush()
		it.data = append(it.data, mem.Copy(piece, mem.DefaultBufferPool()))
	}
	if it.missing == 0 {
		it.flush()
	}
}

func (it *item) flush() {
	if it.small != nil {
		it.data = append(it.data, mem.SliceBuffer(it.small))
		it.small = nil
	}
}

// end lets nothing more arrive.
func (in *inbox) end(why error) {
	if in.err == nil {
		in.err = why
	}
	in.dropPartial()
}

// dropPartial has nothing of an unfinished message kept.
func (in *inbox) dropPartial() {
	if it := in.last(); it != nil && it.missing > 0 {
		it.data.Free()
		*it = item{}
		in.items = in.items[:len(in.items)-1]
	}
}

// within reports whether more of a message has to come. It is then the last
// item, unless it was refused: nothing but its pieces may follow.
func (in *inbox) within() bool {
	it := in.last()
	return in.skip > 0 || it != nil && it.missing > 0
}

func (in *inbox) last() *item {
	if n := len(in.items); n > 0 {
		return &in.items[n-1]
	}
	return nil
}

// take does what a step says that has arrived, whose message took the credit
// cost. An error ends the session, whose mu is held.
func (st *stream) take(rc *wire.Received, cost int, after *callbacks) error {
	in := &st.in
	if rc.Header != nil {
		if in.header {
			return protocolError("the header of a call comes twice")
		}
		if in.within() {
			return protocolError("the header of a call comes within a message")
		}
		in.header = true
		in.items = append(in.items, item{header: rc.Header})
	}
	if rc.Begins || rc.Goes {
		if err := st.takeMessage(rc, cost); err != nil {
			return err
		}
	}
	if rc.HalfClose {
		if in.closed {
			return protocolError("the end of sending comes twice")
		}
		if in.within() {
			return protocolError("the end of sending comes within a message")
		}
		in.closed = true
		in.items = append(in.items, item{halfClose: true})
	}
	if rc.End != nil {
		if in.within() {
			return protocolError("a call ends within a message")
		}
		in.items = append(in.items, item{end: rc.End})
		st.drop()
		st.finish(link.ErrEnded, after)
	}
	after.unpark(&in.receiver)
	return nil
}

// takeMessage takes a message or a piece of one.
func (st *stream) takeMessage(rc *wire.Received, cost int) error {
	in := &st.in
	if in.closed {
		return protocolError("a message comes after the end of sending")
	}
	if cost > in.credit {
		return protocolError("the peer sends more of a call than it has credit for")
	}
	in.credit -= cost
	switch {
	case rc.Begins == in.within():
		return protocolError("the pieces of a message are out of order")
	case in.skip > 0:
		in.skip -= len(rc.Data)
		if in.skip < 0 || (in.skip == 0) == rc.More {
			return protocolError("the pieces of a message are not of its size")
		}
		st.giveBack(cost)
		return nil
	case rc.Begins:
		in.items = append(in.items, item{message: true, compressed: rc.Compressed, size: rc.Size, missing: rc.Size})
	}
	last := in.last()
	if n := len(rc.Data); n > last.missing || (n == last.missing) == rc.More {
		return protocolError("the pieces of a message are not of its size")
	}
	if len(rc.Data) > 0 {
		last.add(rc.Data)
	}
	return nil
}

// giveBack has the peer learn that n bytes were received, once it is worth a
// frame. The session's mu is held.
func (st *stream) giveBack(n int) {
	in, s := &st.in, st.session
	early := min(in.advance, n)
	in.advance -= early
	if in.taken += n - early; in.taken >= s.opts.Window/2 {
		st.give(in.taken)
		in.taken = 0
	}
}

// give gives n bytes of credit to the peer, if it has a use for them. The
// session's mu is held.
func (st *stream) give(n int) {
	s := st.session
	if s.streams[st.id] == st && !st.in.closed && st.in.err == nil {
		st.in.credit += n
		s.control = wire.AppendCredit(s.control, st.id, n)
	}
}

// Recv implements [link.Stream].
func (st *stream) Recv(f *link.Frame) error {
	f.Reset()
	s, in := st.session, &st.in
	s.mu.Lock()
	for {
		for len(in.items) == 0 {
			if err := in.err; err != nil {
				s.mu.Unlock()
				return err
			}
			in.receiver.Wait(&s.mu, st.waiter)
		}
		it := &in.items[0]
		if !it.message {
			f.Header, f.EndSend, f.End = it.header, it.halfClose, it.end
			if it.end != nil {
				st.over = true
			}
			in.pop()
			if f.Header != nil && len(in.items) > 0 && in.items[0].message && in.items[0].missing == 0 && f.Dst != nil {
				continue // a reply comes with its header
			}
			s.mu.Unlock()
			return nil
		}
		switch {
		case f.Dst == nil:
			s.mu.Unlock()
			return nil // it stays for a receiver that wants it
		case it.size > f.Limit: // as gRPC has it, of compressed messages too
			err := &link.RecvError{Size: it.size, Limit: f.Limit}
			st.refuse()
			p := s.writer.Wake()
			s.mu.Unlock()
			wait.Unpark(p)
			return err
		case it.missing == 0:
			return st.receive(f)
		}
		if short := it.missing - in.credit; short > 0 {
			in.advance += short
			st.give(short)
			p := s.writer.Wake()
			s.mu.Unlock()
			wait.Unpark(p)
			s.mu.Lock()
			continue
		}
		in.receiver.Wait(&s.mu, st.waiter)
	}
}

func (in *inbox) pop() {
	in.items[0] = item{}
	if in.items = in.items[1:]; len(in.items) == 0 {
		in.items = nil
	}
}

// refuse throws the first message away, as much of it as has arrived and the
// rest when it does. The session's mu is held.
func (st *stream) refuse() {
	in := &st.in
	it := in.items[0]
	it.data.Free()
	in.skip = it.missing
	in.pop()
	st.giveBack(it.size - it.missing + wire.MessageCost)
}

// receive puts the first message, which is there, where f says, and gives its
// credit back. The session's mu is held, and released.
func (st *stream) receive(f *link.Frame) error {
	s, in := st.session, &st.in
	it := in.items[0]
	in.pop()
	if len(in.items) > 0 && in.items[0].halfClose {
		f.EndSend = true
		in.pop()
	}
	st.giveBack(it.size + wire.MessageCost)
	p := s.writer.Wake()
	s.mu.Unlock()
	wait.Unpark(p)
	data := it.data
	if it.compressed {
		var err error
		if data, err = decompress(data, st.encoding, f.Limit); err != nil {
			return err
		}
	}
	m := link.Encoded(data)
	err := m.DecodeInto(&f.Sink)
	m.Free()
	f.Got = err == nil
	return err
}
