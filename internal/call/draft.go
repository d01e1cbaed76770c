package call

import (
	"context"
	"runtime"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"github.com/nearcall/nearcall/internal/link"
)

// ClientSession returns the session of a connection of package nearcall, which sets it, or nil if
// there is none now.
var ClientSession func(grpc.ClientConnInterface) link.Session

// HandlerSession returns the session over which the call of a handler's context came, or nil for
// another context.
func HandlerSession(ctx context.Context) link.Session {
	if c, ok := ctx.Value(connKey{}).(*serverConn); ok {
		return c.session
	}
	return nil
}

// Draft returns a buffer of at least n bytes, in which the caller builds a message to the peer of
// s. If s has memory that the peer reads (see [link.Peer]), a large buffer is from there. All
// others come from grpc-go's default pool, also if s is nil. The garbage collector returns a
// buffer that was dropped without being freed.
func Draft(s link.Session, n int) mem.Buffer {
	if s != nil && s.Peer().Draft != nil {
		if b, end := s.Peer().Draft(n); b != nil {
			end = sync.OnceFunc(end)
			at := &b
			runtime.AddCleanup(at, func(end func()) { end() }, end)
			return mem.NewBuffer(at, freeing(end))
		}
	}
	return mem.NewBuffer(mem.DefaultBufferPool().Get(n), mem.DefaultBufferPool())
}

// A freeing is the pool of a single buffer.
type freeing func()

// Get implements [mem.BufferPool]. It is not used.
func (freeing) Get(n int) *[]byte { return mem.DefaultBufferPool().Get(n) }

// Put implements [mem.BufferPool].
func (f freeing) Put(*[]byte) { f() }
