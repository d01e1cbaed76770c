package mux

import (
	"time"

	"github.com/nearcall/nearcall/internal/wire"
)

// blockTime bounds the time from the first PART of a block to the block's last frame.
// Until that frame, the peer can send nothing else on the connection, and nothing but
// this timeout frees an unfinished block.
const blockTime = 20 * time.Second

// parts collects a block that is longer than a frame. A connection has at most one such
// block at a time. Memory is allocated as the bytes arrive.
//
// Only the goroutine that reads the connection uses it. The timer runs independently
// and ends the session, even if the block is completed just after it fires.
type parts struct {
	of   uint64      // the stream of the block
	b    *buffer     // nil if no block has begun
	late *time.Timer // nil if b is nil
}

// handlePart handles a PART frame.
func (s *Session) handlePart(f wire.Frame) error {
	p := &s.reading.parts
	if p.b == nil {
		p.of, p.b = f.Stream, newBuffer(len(f.Body))
		p.late = time.AfterFunc(blockTime, s.lateBlock)
	}
	if len(p.b.B)+len(f.Body) > s.opts.MaxHeaderBytes {
		return protocolError("a block is larger than the %d bytes that were said to be taken", s.opts.MaxHeaderBytes)
	}
	p.makeRoom(len(f.Body))
	p.b.B = append(p.b.B, f.Body...)
	return nil
}

// makeRoom makes room for n more bytes. If it has to grow the buffer, it at least
// doubles it.
func (p *parts) makeRoom(n int) {
	if need := len(p.b.B) + n; need > cap(p.b.B) {
		p.b = p.b.Grow(max(need, 2*len(p.b.B)))
	}
}

// finish returns the block's parts, with room for its last n bytes. The caller frees
// the buffer.
func (p *parts) finish(n int) *buffer {
	p.makeRoom(n)
	b := p.b
	p.late.Stop()
	*p = parts{}
	return b
}

// drop frees an unfinished block.
func (p *parts) drop() {
	if p.b != nil {
		p.finish(0).Free()
	}
}

// lateBlock ends the session, because the peer did not finish a block in time.
func (s *Session) lateBlock() {
	s.fail(protocolError("a block was not finished within %v", blockTime))
}
