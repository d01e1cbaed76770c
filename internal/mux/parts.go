package mux

import (
	"time"

	"github.com/nearcall/nearcall/internal/wire"
)

// blockTime is how long a peer may take from the first PART of a block to its
// last frame. Nothing else of the peer's is taken meanwhile, and nothing else
// bounds for how long a block that is never finished stays in memory.
const blockTime = 20 * time.Second

// parts are what has come of a block that is longer than a frame. A connection
// has one such block at a time. It takes memory as its bytes come.
//
// Only the goroutine that reads the connection uses them. The timer runs by itself and
// ends the session, even if the block is finished a moment later.
type parts struct {
	of   uint64      // the call
	b    *buffer     // nil where no block has begun
	late *time.Timer // set while b is
}

// handlePart takes a PART.
func (s *Session) handlePart(f wire.Frame) error {
	p := &s.parts
	if p.b == nil {
		p.of, p.b = f.Stream, newBuffer(len(f.Body))
		p.late = time.AfterFunc(blockTime, s.lateBlock)
	}
	if len(p.b.b)+len(f.Body) > s.opts.MaxHeaderBytes {
		return protocolError("a block is larger than the %d bytes that were said to be taken", s.opts.MaxHeaderBytes)
	}
	p.makeRoom(len(f.Body))
	p.b.b = append(p.b.b, f.Body...)
	return nil
}

// makeRoom makes room for n bytes more, and where there is none for twice as many as
// there are.
func (p *parts) makeRoom(n int) {
	if need := len(p.b.b) + n; need > cap(p.b.b) {
		p.b = p.b.grow(max(need, 2*len(p.b.b)))
	}
}

// finish returns what has come of a block whose last n bytes are there, with
// room for them. Whoever calls it frees what it returns.
func (p *parts) finish(n int) *buffer {
	p.makeRoom(n)
	b := p.b
	p.late.Stop()
	*p = parts{}
	return b
}

// drop forgets a block that will not be finished.
func (p *parts) drop() {
	if p.b != nil {
		p.finish(0).free()
	}
}

// lateBlock ends the session of a peer that does not finish a block.
func (s *Session) lateBlock() {
	s.fail(protocolError("a block was not finished within %v", blockTime))
}
