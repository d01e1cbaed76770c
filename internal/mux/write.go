package mux

import (
	"math"
	"net"
	"runtime"
	"time"

	"github.com/nearcall/nearcall/internal/wait"
	"github.com/nearcall/nearcall/internal/wire"
)

// writing is what there is to write, and who writes it. It is guarded by mu.
//
// Whoever has the pen writes, for all. Over a bare socket whoever queued
// something takes it, if it is free, writes without waiting, and leaves it when
// nothing is left. What the socket has no room for, and what others are about to
// add to, is left to the writer, a goroutine of the session, which waits where
// it must. Over other connections it writes everything.
//
// Invariant: where something is queued that can be written, the pen is taken,
// or the writer was called for it, or whoever holds mu is about to do one of
// these.
type writing struct {
	control []byte     // frames of the session, and those that need no turn
	ready   writeQueue // of those with something to write
	bulk    writeQueue // of those within a message: they let others go first
	starved writeQueue // of those that were ready, and wait for the connection's credit
	connOut int64      // the connection's credit
	backlog int        // the credit that what all streams have to write takes
	bye     []byte     // the last frame, once the session has ended
	broken  error      // why nothing more can be written, though the session has not ended
	lost    bool       // write nothing more
	pen     pen
	writer  wait.Cond

	// Of whoever has the pen.
	enc   wire.Encoder
	batch batch
	fault error // what Write returned, for the writer
}

// A pen is who writes.
type pen byte

const (
	penFree   pen = iota
	penCalled     // the writer was called to take it; others may be faster
	penTaken
	penHandedOver // to the writer, together with a batch that was begun
)

const (
	// maxBatch is how many bytes are collected for one Write, and a frame more.
	maxBatch = 256 << 10

	// someBatch is how large a batch is expected to be, pieces left out.
	someBatch = 4 << 10

	// maxRounds is how often a caller writes for others before it leaves the
	// pen to the writer.
	maxRounds = 4
)

// A batch is what one Write writes: b, with pieces of messages in between.
type batch struct {
	b      *buffer
	pieces []cutting
	all    net.Buffers // what is left of b and pieces, in their order; nil without pieces
	done   int         // how much of b was written; of use without pieces
	size   int
	spent  []*buffer // of messages that are over with it
	last   bool      // it ends with BYE
}

// A cutting of a message goes where b has got to at.
type cutting struct {
	at int
	b  []byte
}

// free forgets what was written.
func (t *batch) free() {
	for i, b := range t.spent {
		b.free()
		t.spent[i] = nil
	}
	clear(t.pieces)
	t.b.free()
	*t = batch{pieces: t.pieces[:0], spent: t.spent[:0]}
}

// gather puts b and pieces in their order.
func (t *batch) gather() {
	if len(t.pieces) == 0 {
		return
	}
	t.all = make(net.Buffers, 0, 2*len(t.pieces)+1)
	at := 0
	for _, p := range t.pieces {
		t.all = append(t.all, t.b.b[at:p.at], p.b)
		at = p.at
	}
	if at < len(t.b.b) {
		t.all = append(t.all, t.b.b[at:])
	}
}

// wrote takes in that n bytes of what was left are written. It reports whether
// that was all.
func (t *batch) wrote(n int) bool {
	if t.all == nil {
		t.done += n
		return t.done == len(t.b.b)
	}
	for len(t.all) > 0 && n >= len(t.all[0]) {
		n -= len(t.all[0])
		t.all = t.all[1:]
	}
	if len(t.all) > 0 {
		t.all[0] = t.all[0][n:]
	}
	return len(t.all) == 0
}

// wakeWriter makes the writer write what is queued, or end the session.
// mu is held.
func (s *Session) wakeWriter() {
	if s.pen == penFree {
		s.pen = penCalled
	}
	if s.pen != penTaken || s.lost {
		wait.Unpark(s.writer.Wake())
	}
}

// hasQueued reports whether there is something that can be written. mu is held.
func (s *Session) hasQueued() bool {
	return len(s.control) > 0 || s.ready.first != nil || s.bulk.first != nil || s.canFeed()
}

// canFeed reports whether there is credit of the connection for a stream that waits
// for it. mu is held.
func (s *Session) canFeed() bool { return s.starved.first != nil && s.connOut > wire.MessageCost }

// feedStarved gives those that wait for the connection's credit a turn, as many as there
// is credit for. A peer may have thousands of them wait, and give credit byte by
// byte: each that is taken from the queue is paid for with credit that it will use,
// if no other is faster. mu is held.
func (s *Session) feedStarved() {
	for left := s.connOut; left > wire.MessageCost && s.starved.first != nil; {
		st := s.starved.first
		s.starved.remove(st)
		st.schedule()
		left -= max(min(st.credit, int64(st.backlog)), 0)
	}
}

// flush writes what is queued, or leaves it to the writer. gather says that others may
// be about to queue something, too, for which it is worth to let them run
// first. mu is held, and released.
func (s *Session) flush(gather bool) {
	if s.pen >= penTaken || !s.hasQueued() {
		s.mu.Unlock()
		return
	}
	if s.raw == nil || s.ended != nil || s.broken != nil || !s.started {
		s.wakeWriter()
		s.mu.Unlock()
		return
	}
	s.pen = penTaken
	if gather && s.othersMayWrite() {
		s.mu.Unlock()
		runtime.Gosched()
		s.mu.Lock()
	}
	for round := 0; s.collect(); round++ {
		if s.batch.last || round == maxRounds {
			break
		}
		s.mu.Unlock()
		n, err := s.raw.TryWrite(s.batch.b.b, s.batch.all)
		s.mu.Lock()
		if !s.batch.wrote(n) {
			s.fault = err
			break
		}
		s.batch.free()
	}
	s.pen = penFree
	if s.batch.b != nil {
		s.pen = penHandedOver
	}
	if s.batch.b != nil || s.lost {
		s.wakeWriter()
	}
	s.mu.Unlock()
}

// othersMayWrite reports whether several calls are open that may have something to write
// soon. mu is held.
func (s *Session) othersMayWrite() bool {
	if s.opts.Client {
		return s.waiting > 0
	}
	return s.calls > 1
}

// writeLoop is the writer. It runs until the session ends.
func (s *Session) writeLoop() {
	s.mu.Lock()
	for {
		for s.pen != penCalled && s.pen != penHandedOver && !s.lost {
			s.writer.Wait(&s.mu, nil)
		}
		if s.lost {
			s.mu.Unlock()
			_ = s.conn.Close()
			return
		}
		begun := s.pen == penHandedOver
		s.pen = penTaken
		if !begun && !s.collect() {
			s.pen = penFree
			continue
		}
		err := s.fault
		s.mu.Unlock()
		if err == nil {
			err = s.write(&s.batch)
		}
		if err != nil {
			s.onWriteError(err) // and leaves the pen taken
			return
		}
		last := s.batch.last
		s.mu.Lock()
		s.batch.free()
		if last {
			s.mu.Unlock()
			s.closeWrite()
			return
		}
		s.pen = penCalled
	}
}

// write writes a batch, and waits where it must.
func (s *Session) write(t *batch) (err error) {
	if t.all == nil {
		_, err = s.conn.Write(t.b.b[t.done:])
		return err
	}
	_, err = t.all.WriteTo(s.conn)
	return err
}

// lastWords is how long a peer that cannot be written to may take to be read to
// the end.
const lastWords = time.Second

// onWriteError takes in that nothing more can be written. Whoever reads ends the
// session, with what the peer's BYE says where there is one: a peer that has
// gone breaks the way to it at the same time as it says why.
func (s *Session) onWriteError(err error) {
	s.mu.Lock()
	if s.ended == nil {
		s.broken = err
		if !s.interrupted { // else the leader sets it, who would not be hurried any more
			s.resetReadDeadline()
		}
		if !s.occupied {
			s.wakeResident()
		}
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	s.fail(err)
}

// closeWrite says that nothing follows BYE, where a connection can be closed one
// way. Otherwise BYE says it. The connection stays open for the reader, which waits
// for the peer's end: see farewells.
func (s *Session) closeWrite() {
	if c, ok := s.conn.(interface{ CloseWrite() error }); ok && c.CloseWrite() != nil {
		_ = s.conn.Close()
	}
}

// collect makes the batch of what is queued. It reports whether there is
// something. mu is held, and the caller has the pen.
func (s *Session) collect() bool {
	ends := s.bye != nil && s.live.first == nil
	if s.lost || !s.hasQueued() && !ends {
		return false
	}
	t := &s.batch
	t.b = newBuffer(max(len(s.control), someBatch))
	t.b.b = append(t.b.b, s.control...)
	t.size = len(t.b.b)
	s.control = s.control[:0]
	if cap(s.control) > maxBatch {
		s.control = nil
	}
	said := t.size
	s.feedStarved()
	for t.size < maxBatch && s.ready.first != nil {
		s.writeFrame(t, &s.ready)
	}
	for first := true; s.bulk.first != nil && (first || t.size < maxBatch); first = false {
		s.writeFrame(t, &s.bulk)
	}
	if s.bell != nil && t.size > said {
		s.bell.Reset(s.opts.Farewell) // the peer takes what calls have left to say
	}
	if s.bye != nil && s.live.first == nil {
		t.b.b = append(t.b.b, s.bye...)
		t.last = true
		t.size += len(s.bye)
	}
	if t.size == 0 {
		t.free()
		return false
	}
	t.gather()
	return true
}

// writeFrame appends one frame of the first stream in q. mu is held.
func (s *Session) writeFrame(t *batch, q *writeQueue) {
	st := q.first
	q.remove(st)
	o := &st.out[0]
	step := &o.step
	if step.Open != nil && st.id == 0 {
		s.assignNumber(st)
		if d := step.Open.Deadline; !d.IsZero() {
			step.Timeout = max(time.Until(d), 1)
		}
	}
	step.Stream = st.id
	n := len(t.b.b)
	var cost int
	var large []byte
	placed := step.Placed
	credit := int(max(min(st.credit, s.connOut, math.MaxInt), 0))
	if s.raw == nil { // such as TLS, which has no use for pieces
		t.b.b, cost = s.enc.Append(t.b.b, step, credit)
	} else if t.b.b, large, cost = s.enc.AppendHead(t.b.b, step, credit); large != nil {
		t.pieces = append(t.pieces, cutting{len(t.b.b), large})
	}
	st.credit -= int64(cost)
	if placed && !step.Placed { // it is this side's own memory that it waits in
		s.connOut -= wire.MessageCost
	} else {
		s.connOut -= int64(cost)
	}
	st.backlog -= cost
	s.backlog -= cost
	wrote := len(t.b.b) - n + len(large)
	t.size += wrote
	if step.Done() {
		if o.message != nil {
			t.spent = append(t.spent, o.message)
		}
		*o = outgoing{}
		if st.out = st.out[1:]; len(st.out) == 0 {
			st.out = nil
			if st.over {
				st.unregister()
			}
		}
	}
	if st.credit > int64(st.backlog) && !st.full() { // it was full, if its sender waits
		if p := st.sender.Wake(); p != nil {
			s.waiting--
			p.Unpark()
		}
	}
	switch {
	case wrote > 0:
		s.keepalive.spoke = true
		st.schedule()
	case s.connOut <= wire.MessageCost:
		s.starved.push(st)
	}
}

// assignNumber gives a call of this side's its number. mu is held.
func (s *Session) assignNumber(st *stream) {
	switch {
	case s.lastOwn > 0:
		s.lastOwn += 2
	case s.opts.Client:
		s.lastOwn = 1
	default:
		s.lastOwn = 2
	}
	st.id = s.lastOwn
	s.streams[st.id] = st
}

// addCredit adds n to credit, which is below zero after a message that was
// placed and larger.
func addCredit(to *int64, n int64) error {
	if *to > wire.MaxCredit-n {
		return protocolError("more credit than %d", wire.MaxCredit)
	}
	*to += n
	return nil
}
