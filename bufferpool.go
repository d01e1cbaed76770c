package nearcall

import (
	"context"

	"google.golang.org/grpc/mem"

	"github.com/nearcall/nearcall/internal/call"
)

// BufferPool returns a pool of memory for messages that are sent on the connection. Over shared
// memory, pieces of 32 KiB and more are memory that the server reads: a message that a codec has
// put there, or that was built there, is sent without a copy. The codec returns it from Marshal, in
// one mem.Buffer whose bytes are any part of such a piece, and whose memory comes back to this pool
// when it is freed. All other pieces, and those of connections without shared memory, come from
// mem.DefaultBufferPool.
//
// A message is copied all the same if it is compressed, if there is a limit on what is sent, or if a
// stats handler of the server or of a stream has to know its size.
//
// The memory contains what was there before. It must not be used after Put, nor when the pointer
// that Get has returned is unreachable. One message of a piece is sent without a copy at a time.
//
// The server's process can write to such memory while it is in use. What reads it back, as a
// FlatBuffers builder does, can be made to panic by a server that means harm. Servers over shared
// memory belong to the same user.
//
// The pool may be used concurrently, also when the connection is lost or closed.
func (cc *ClientConn) BufferPool() mem.BufferPool {
	if cc.remote != nil {
		return mem.DefaultBufferPool()
	}
	return call.BufferPool{Session: cc.conn.Current}
}

// BufferPool returns a pool of memory for messages to the client that has made a call. ctx is the
// context of its handler, or one derived from it. The pool is as that of [ClientConn.BufferPool],
// with the sides exchanged, and can be used after the handler has returned. With any other context
// it is mem.DefaultBufferPool.
func BufferPool(ctx context.Context) mem.BufferPool { return call.BufferPoolOf(ctx) }
