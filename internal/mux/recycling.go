package mux

import "sync"

// Reuse of streams.
//
// A stream is larger than most messages, so the streams of unary calls are pooled. The stream of
// a call of this side never leaves Invoke. The stream of a call of the peer has several holders,
// and the last one to drop it puts it into the pool.
//
// Invariants:
//   - holders counts those that may still use the stream: the session, which drops it when the
//     callee has ended the call and all was written; the acceptor until it calls Free;
//     offerToAcceptor; and the resident while it is lent to the stream.
//   - A stream that has ended in another way is not reused, because callbacks may be on their way
//     to it: then the session does not drop it. The stream of a streaming method is not reused
//     either, because the acceptor does not free it.

// streamPool has cleared streams.
var streamPool = sync.Pool{New: func() any { return new(stream) }}

// recycle puts a stream that nobody holds into the pool.
func (st *stream) recycle() {
	*st = stream{}
	streamPool.Put(st)
}

// newCallee returns a stream for a call of the peer, which the session, the acceptor and
// offerToAcceptor hold.
func newCallee() *stream {
	st := streamPool.Get().(*stream)
	st.holders.Store(3)
	return st
}

// drop says that one of the stream's holders uses it no more.
func (st *stream) drop() {
	if st.holders.Add(-1) == 0 {
		st.recycle()
	}
}

// Free implements [link.Freer].
func (st *stream) Free() { st.drop() }

// dropWritten drops the stream for the session if the callee has ended the call and everything
// has just been written. It keeps the stream of an aborted call. The caller does not use the
// stream after that. The session's mu is held.
func (st *stream) dropWritten() {
	if !st.caller && st.ended && len(st.out) == 0 {
		st.drop()
	}
}
