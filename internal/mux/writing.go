package mux

import (
	"math"
	"net"
	"runtime"
	"slices"
	"time"

	"github.com/nearcall/nearcall/internal/lifecycle"
	"github.com/nearcall/nearcall/internal/mux/waits"
	"github.com/nearcall/nearcall/internal/wait"
	"github.com/nearcall/nearcall/internal/wire"
)

// writing holds the queues of streams that have something to write. Guarded by mu.
//
// The goroutine that holds the write lock writes for all streams. Over a bare socket, a goroutine
// that queues something takes the write lock if it is free, writes without blocking, and releases
// the write lock when nothing is left. If the socket is full, or if more messages are likely to
// follow soon, it leaves the rest to the writer, a goroutine of the session that may block. Over
// other connections the writer writes everything.
//
// [waits.Roles] has the rules.
type writing struct {
	control []byte     // frames of the session, and frames of calls that need not wait for their turn
	ready   writeQueue // streams with something to write
	bulk    writeQueue // streams in the middle of a message; ready goes first
	starved writeQueue // streams that wait for the connection's credit
	held    writeQueue // new calls over the peer's limit of open calls, first in, first out
	connOut int64      // what is left of the connection's credit, in bytes
	backlog int        // credit that the queued messages of all streams will take
	bye     []byte     // the last frame, once the session has ended
	broken  error      // a write error, while the session has not ended yet
	lost    bool       // nothing more can be written
	writer  wait.Cond

	// Owned by the goroutine with the write lock.
	enc   wire.Encoder
	batch batch
	fault error // the error of a write by a goroutine other than the writer; the writer handles it
}

const (
	// maxBatch bounds the bytes that are collected for one Write. The last frame may exceed it.
	maxBatch = 256 << 10

	// someBatch is the initial capacity of a batch, in bytes, without large pieces.
	someBatch = 4 << 10

	// maxRounds is how many batches a caller writes before it passes the write lock to the writer.
	maxRounds = 4
)

// A batch is the output of one Write: b, with large pieces of messages inserted.
type batch struct {
	b      *buffer
	pieces []cutting
	all    net.Buffers // b and pieces in order, without what was written
	one    [1][]byte   // backing array of all if there are no pieces
	size   int
	spent  []*buffer // message buffers to free when the batch is written
	last   bool      // it ends with BYE
}

// A cutting is a piece of a message that goes into the batch's b, at the offset in the field at.
type cutting struct {
	at int
	b  []byte
}

// free resets the batch and frees its buffers.
func (t *batch) free() {
	for i, b := range t.spent {
		b.Free()
		t.spent[i] = nil
	}
	clear(t.pieces)
	t.b.Free()
	*t = batch{pieces: t.pieces[:0], spent: t.spent[:0]}
}

// gather sets the field all from b and pieces.
func (t *batch) gather() {
	if t.all = t.one[:0]; len(t.pieces) > 0 {
		t.all = make(net.Buffers, 0, 2*len(t.pieces)+1)
	}
	at := 0
	for _, p := range t.pieces {
		t.all = append(t.all, t.b.B[at:p.at], p.b)
		at = p.at
	}
	if at < len(t.b.B) {
		t.all = append(t.all, t.b.B[at:])
	}
}

// wrote records that n more bytes were written. It reports whether the whole batch was.
func (t *batch) wrote(n int) bool {
	for len(t.all) > 0 && n >= len(t.all[0]) {
		n -= len(t.all[0])
		t.all = t.all[1:]
	}
	if len(t.all) > 0 {
		t.all[0] = t.all[0][n:]
	}
	return len(t.all) == 0
}

// hasQueuedLocked reports whether anything is queued that can be written.
func (s *Session) hasQueuedLocked() bool {
	return len(s.writing.control) > 0 || s.writing.ready.first != nil || s.writing.bulk.first != nil ||
		s.writing.starved.first != nil && s.writing.connOut > wire.MessageCost
}

// feedStarvedLocked schedules starved streams, as many as the connection's credit is likely to
// serve. A peer may starve thousands of streams and grant credit byte by byte, so feedStarvedLocked
// deducts what each stream can use before it schedules the next.
func (s *Session) feedStarvedLocked() {
	for left := s.writing.connOut; left > wire.MessageCost && s.writing.starved.first != nil; {
		st := s.writing.starved.first
		s.writing.starved.remove(st)
		st.scheduleLocked()
		left -= max(min(st.flow.Credit, int64(st.flow.Backlog)), 0)
	}
}

// flushLocked writes queued frames, or leaves them to the writer. If gather is set and other
// goroutines may be about to queue something too, it lets them run first. mu is released in
// between.
func (s *Session) flushLocked(gather bool) {
	if !s.hasQueuedLocked() {
		return
	}
	if do, ok := s.roles.TakeWriteLock(s.raw != nil && s.life.State() != lifecycle.Opening); !ok {
		s.doLocked(do)
		return
	}
	if gather && s.othersMayWriteLocked() {
		s.mu.Unlock()
		runtime.Gosched()
		s.mu.Lock()
	}
	for round := 0; s.collectLocked(); round++ {
		if s.writing.batch.last || round == maxRounds {
			break
		}
		s.mu.Unlock()
		n, err := s.raw.TryWrite(s.writing.batch.all...)
		s.mu.Lock()
		if !s.writing.batch.wrote(n) {
			s.writing.fault = err
			break
		}
		s.writing.batch.free()
	}
	s.checkWrittenLocked()
	s.doLocked(s.roles.ReleaseWriteLock(s.writing.batch.b != nil, s.writing.lost))
}

// othersMayWriteLocked reports whether other calls are open that may have something to write soon.
func (s *Session) othersMayWriteLocked() bool {
	if s.acceptor == nil {
		return s.roles.Waiting > 0
	}
	return s.calls > 1
}

// writeLoop is the writer. It returns after BYE, after a write error, or if the connection is lost.
func (s *Session) writeLoop() {
	s.mu.Lock()
	for {
		for !s.roles.WriterMayWrite() && !s.writing.lost {
			s.writing.writer.Wait(&s.mu, nil)
		}
		if s.writing.lost {
			s.mu.Unlock()
			_ = s.conn.Close()
			return
		}
		handedOver := s.roles.WriteLock == waits.HandedOver
		s.roles.WriteLock = waits.Taken
		if !handedOver && s.raw == nil && s.othersMayWriteLocked() {
			s.mu.Unlock()
			runtime.Gosched() // each write costs more than over a bare socket: gather more
			s.mu.Lock()
		}
		if !handedOver && !s.collectLocked() {
			s.checkWrittenLocked()
			s.doLocked(s.roles.ReleaseWriteLock(false, s.writing.lost))
			continue
		}
		err := s.writing.fault
		s.mu.Unlock()
		if err == nil {
			err = s.write(&s.writing.batch)
		}
		if err != nil {
			s.onWriteError(err) // the lock stays taken
			return
		}
		last := s.writing.batch.last
		s.mu.Lock()
		s.writing.batch.free()
		if last {
			s.mu.Unlock()
			s.closeWrite()
			return
		}
		s.roles.WriteLock = waits.Called
	}
}

// write writes the rest of a batch. It may block.
func (s *Session) write(t *batch) (err error) {
	if g, ok := s.conn.(Gatherer); ok {
		_, err = g.WriteAll(t.all)
		return err
	}
	if len(t.all) == 1 { // the race detector sees a Write, and nothing of package net's writev
		_, err = s.conn.Write(t.all[0])
		return err
	}
	_, err = t.all.WriteTo(s.conn)
	return err
}

// lastWords is how long the session keeps reading from the peer after a write error.
const lastWords = time.Second

// onWriteError records a write error. The reader ends the session, if possible with the text of the
// peer's BYE: a peer that leaves sends BYE and breaks our writes at the same time.
func (s *Session) onWriteError(err error) {
	s.mu.Lock()
	if s.life.Reason() == nil {
		s.writing.broken, s.roles.Ended = err, true
		if !s.roles.Interrupted { // otherwise the reading caller does this: here it would undo the interruption
			s.resetReadDeadlineLocked()
		}
		s.doLocked(s.roles.NeedReader())
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	s.fail(err)
}

// resetReadDeadlineLocked sets the deadline for the next reads: none, or lastWords from now if a
// write has failed.
func (s *Session) resetReadDeadlineLocked() {
	var due time.Time
	if s.writing.broken != nil {
		due = time.Now().Add(lastWords)
	}
	_ = s.conn.SetReadDeadline(due)
}

// closeWrite closes the connection for writing after BYE, if it can be closed in one direction.
// The other direction stays open for the reader, which waits for the peer to close: see Closing.
func (s *Session) closeWrite() {
	if c, ok := s.conn.(interface{ CloseWrite() error }); ok && c.CloseWrite() != nil {
		_ = s.conn.Close()
	}
}

// collectLocked fills the batch from the queues. It reports whether there was anything to
// write. The caller holds the write lock.
func (s *Session) collectLocked() bool {
	ends := s.writing.bye != nil && len(s.live) == 0
	if s.writing.lost || !s.hasQueuedLocked() && !ends {
		return false
	}
	t := &s.writing.batch
	t.b = newBuffer(max(len(s.writing.control), someBatch))
	t.b.B = append(t.b.B, s.writing.control...)
	t.size = len(t.b.B)
	s.writing.control = s.writing.control[:0]
	if cap(s.writing.control) > maxBatch {
		s.writing.control = nil
	}
	said := t.size
	s.feedStarvedLocked()
	for t.size < maxBatch && s.writing.ready.first != nil {
		s.writeFrameLocked(t, &s.writing.ready)
	}
	for first := true; s.writing.bulk.first != nil && (first || t.size < maxBatch); first = false {
		s.writeFrameLocked(t, &s.writing.bulk)
	}
	if s.life.Reason() != nil && t.size > said {
		s.performLocked(s.life.Takes()) // the peer still reads queued frames of ended calls
	}
	if s.writing.bye != nil && len(s.live) == 0 {
		t.b.B = append(t.b.B, s.writing.bye...)
		t.last = true
		t.size += len(s.writing.bye)
	}
	if t.size == 0 {
		t.free()
		return false
	}
	t.gather()
	return true
}

// writeFrameLocked appends one frame of the first stream in q.
func (s *Session) writeFrameLocked(t *batch, q *writeQueue) {
	st := q.first
	q.remove(st)
	if st.out[0].run.frames != nil && s.writeRunLocked(t, st) {
		return
	}
	o := &st.out[0]
	step := &o.step
	if step.Open != nil && st.id == 0 {
		s.assignNumberLocked(st)
		if d := step.Open.Deadline; !d.IsZero() {
			step.Timeout = max(time.Until(d), 1)
		}
	}
	step.Stream = st.id
	n := len(t.b.B)
	var cost int
	var large []byte
	placed := step.Placed
	credit := int(max(min(st.flow.Credit, s.writing.connOut, math.MaxInt), 0))
	if s.raw == nil { // such as TLS, which cannot write pieces without copying
		t.b.B, cost = s.writing.enc.Append(t.b.B, step, credit)
	} else if t.b.B, large, cost = s.writing.enc.AppendHead(t.b.B, step, credit); large != nil {
		t.pieces = append(t.pieces, cutting{len(t.b.B), large})
	}
	st.flow.Credit -= int64(cost)
	if placed && !step.Placed { // it waits in our own memory, so its size counts for the call only
		s.writing.connOut -= wire.MessageCost
	} else {
		s.writing.connOut -= int64(cost)
	}
	st.flow.Backlog -= cost
	s.writing.backlog -= cost
	wrote := len(t.b.B) - n + len(large)
	t.size += wrote
	if step.Done() {
		if o.message != nil {
			t.spent = append(t.spent, o.message)
		}
		st.flow.Queued--
		st.removeWrittenLocked()
	}
	st.wakeSenderLocked()
	switch {
	case wrote > 0:
		s.pingLimit.Spoke()
		st.scheduleLocked()
	case s.writing.connOut <= wire.MessageCost:
		s.writing.starved.push(st)
	}
	st.dropWrittenLocked()
}

// writeRunLocked appends the run at the head of st.out to the batch: as many whole messages as the
// connection has credit for. If the credit suffices only for a piece of the first message,
// writeRunLocked makes this message a step and returns false.
func (s *Session) writeRunLocked(t *batch, st *stream) bool {
	r := &st.out[0].run
	frames := r.frames.B[r.at:]
	n, cost, count := len(frames), r.cost, r.count
	if int64(cost) > s.writing.connOut {
		n, cost, count = fitting(frames, s.writing.connOut)
	}
	if n == 0 && s.writing.connOut > wire.MessageCost {
		st.unqueueFirstLocked()
		return false
	}
	if n == 0 {
		s.writing.starved.push(st)
		return true
	}
	s.writing.connOut -= int64(cost)
	st.flow.Credit -= int64(cost)
	st.flow.Backlog -= cost
	s.writing.backlog -= cost
	st.flow.Queued -= count
	t.size += n
	switch whole := n == len(frames); {
	case whole && s.raw != nil && n >= wire.LargePiece:
		t.pieces = append(t.pieces, cutting{len(t.b.B), frames})
		t.spent = append(t.spent, r.frames)
		st.removeWrittenLocked()
	case whole:
		t.b.B = append(t.b.B, frames...)
		r.frames.Free()
		st.removeWrittenLocked()
	default:
		t.b.B = append(t.b.B, frames[:n]...)
		r.at, r.cost, r.count = r.at+n, r.cost-cost, r.count-count
	}
	st.wakeSenderLocked()
	s.pingLimit.Spoke()
	st.scheduleLocked()
	st.dropWrittenLocked()
	return true
}

// fitting returns the length of the longest prefix of frames that consists of whole frames and for
// which the credit suffices. It also returns how much credit that prefix takes, and how many
// messages it has.
func fitting(frames []byte, credit int64) (n, cost, count int) {
	for n < len(frames) {
		_, message, size := wire.Plain(frames[n:])
		c := len(message) + wire.MessageCost
		if int64(cost+c) > credit {
			break
		}
		n, cost, count = n+size, cost+c, count+1
	}
	return n, cost, count
}

// unqueueFirstLocked takes the first message out of a run, and puts it before the run as a step.
func (st *stream) unqueueFirstLocked() {
	r := &st.out[0].run
	_, message, n := wire.Plain(r.frames.B[r.at:])
	b := newBuffer(len(message))
	b.B = append(b.B, message...)
	r.at, r.cost, r.count = r.at+n, r.cost-len(message)-wire.MessageCost, r.count-1
	first := outgoing{step: wire.Step{HasMessage: true, Message: b.B}, message: b}
	if r.count > 0 {
		st.out = slices.Insert(st.out, 0, first)
		return
	}
	r.frames.Free()
	st.out[0] = first
}

// removeWrittenLocked removes the first outgoing, which was written.
func (st *stream) removeWrittenLocked() {
	st.out[0] = outgoing{}
	if st.out = st.out[1:]; len(st.out) == 0 {
		st.out = nil
		if st.ended {
			st.unregisterLocked()
		}
	}
}

// wakeSenderLocked wakes the sender, if one waits and may queue another message.
func (st *stream) wakeSenderLocked() {
	if st.flow.TakesMore(st.session.writing.backlog) {
		wait.Unpark(st.session.wakeLocked(&st.sender))
	}
}

// assignNumberLocked gives a call of this side its id.
func (s *Session) assignNumberLocked(st *stream) {
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
	s.numberedLocked()
}
