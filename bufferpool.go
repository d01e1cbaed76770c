package nearcall

import (
	"context"

	"google.golang.org/grpc/mem"

	"github.com/nearcall/nearcall/internal/call"
)

// BufferPool returns a pool of memory for messages that are sent on the connection. Over shared
// memory, pieces of 32 KiB and more lie where the server reads them: a message that a codec or a
// program builds in such a piece is sent without a copy. The codec's Marshal returns the message
// in one mem.Buffer, whose bytes are any part of the piece, and which returns the piece to this
// pool when it is freed. All other pieces, and those of connections without shared memory, come
// from mem.DefaultBufferPool.
//
// A message is still copied if it is compressed, if its size on sending is limited, or if a stats
// handler of the server or of a stream has to know its size.
//
// Get does not clear the memory. The memory must not be used after Put, nor once the pointer that
// Get returned is unreachable. Of the messages in one piece, one at a time is sent without a copy.
//
// The server's process can write to such memory while it is in use. A malicious server can make
// code panic that reads the memory back, as a FlatBuffers builder does. Servers over shared
// memory belong to the same user.
//
// The pool is safe for concurrent use, also after the connection is lost or closed.
func (cc *ClientConn) BufferPool() mem.BufferPool {
	if cc.remote != nil {
		return mem.DefaultBufferPool()
	}
	return call.BufferPool{Session: cc.conn.Current}
}

// BufferPool returns a pool of memory for messages to the client that has made a call. ctx is the
// context of its handler, or one derived from it. The pool is like that of
// [ClientConn.BufferPool], with client and server exchanged, and can be used after the handler
// has returned. For any other context BufferPool returns mem.DefaultBufferPool.
func BufferPool(ctx context.Context) mem.BufferPool { return call.BufferPoolOf(ctx) }
