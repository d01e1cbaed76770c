package nearcall

import (
	"context"

	"google.golang.org/grpc/mem"

	"github.com/nearcall/nearcall/internal/call"
)

// BufferPool returns a pool of memory for messages that are sent on the connection. Over shared
// memory, a piece of 32 KiB or more lies in memory that the server reads as well. So a message
// that a codec or a program builds in such a piece is sent without a copy. For that, the codec's
// Marshal must return the message in one mem.Buffer. The buffer's bytes can be any part of the
// piece, and freeing the buffer must return the piece to this pool. All other pieces, and those of
// connections without shared memory, come from mem.DefaultBufferPool.
//
// A message is still copied if it is compressed, if the size of sent messages is limited, or if a
// stats handler of the server or of a stream has to know its size.
//
// Get does not clear the memory. The memory must not be used after Put, nor once the pointer that
// Get returned is unreachable. If one piece holds several messages, only one of them at a time is
// sent without a copy.
//
// The server's process can write to such memory while it is in use. So a malicious server can
// cause a panic in code that reads the memory back, such as a FlatBuffers builder. But a server
// over shared memory always belongs to the same user as the client.
//
// The pool is safe for concurrent use, also after the connection is lost or closed.
func (cc *ClientConn) BufferPool() mem.BufferPool {
	if cc.remote != nil {
		return mem.DefaultBufferPool()
	}
	return call.BufferPool{Session: cc.conn.Current}
}

// BufferPool returns a pool of memory for messages to the client that has made a call. ctx is the
// context of the call's handler, or one derived from it. The pool is like that of
// [ClientConn.BufferPool], with client and server exchanged, and can be used after the handler has
// returned. For any other context BufferPool returns mem.DefaultBufferPool.
func BufferPool(ctx context.Context) mem.BufferPool { return call.BufferPoolOf(ctx) }
