package call

import (
	"context"
	"runtime"
	"sync"
	"weak"

	"google.golang.org/grpc/mem"

	"github.com/nearcall/nearcall/internal/link"
)

// A BufferPool is a mem.BufferPool of memory for messages to the peer of a session. Large pieces
// of it are drafts (see link.Peer), if the session has any; all others come from grpc-go's default
// pool.
type BufferPool struct {
	// Session returns the session, or nil if there is none now.
	Session func() link.Session
}

// BufferPoolOf returns the pool for the session over which the call of a handler's context came.
func BufferPoolOf(ctx context.Context) mem.BufferPool {
	c, ok := ctx.Value(connKey{}).(*serverConn)
	if !ok {
		return mem.DefaultBufferPool()
	}
	return BufferPool{func() link.Session { return c.session }}
}

// drafts has the functions that end drafts, by the pointers that Get has returned. If the user
// drops a pointer without Put, its draft ends when the garbage collector notices.
var drafts sync.Map // of func(), by weak.Pointer[[]byte]

// Get implements [mem.BufferPool].
func (p BufferPool) Get(n int) *[]byte {
	s := p.Session()
	if s == nil || s.Peer().Draft == nil {
		return mem.DefaultBufferPool().Get(n)
	}
	b, end := s.Peer().Draft(n)
	if b == nil {
		return mem.DefaultBufferPool().Get(n)
	}
	at := new([]byte)
	*at = b
	key := weak.Make(at)
	drafts.Store(key, end)
	runtime.AddCleanup(at, func(key weak.Pointer[[]byte]) { endDraft(key) }, key)
	return at
}

// Put implements [mem.BufferPool].
func (p BufferPool) Put(b *[]byte) {
	if endDraft(weak.Make(b)) {
		*b = nil // so that a second Put does not give it to another pool
		return
	}
	mem.DefaultBufferPool().Put(b)
}

// endDraft ends the draft of key, and reports whether there is one.
func endDraft(key weak.Pointer[[]byte]) bool {
	end, ok := drafts.LoadAndDelete(key)
	if ok {
		end.(func())()
	}
	return ok
}
