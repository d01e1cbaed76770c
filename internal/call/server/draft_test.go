package server

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/testing/leak"
)

// A drafting session's peer reads memory that both map.
type drafting struct {
	leaving
	drafts atomic.Int32
}

func (d *drafting) Peer() *link.Peer {
	return &link.Peer{Caps: link.Caps{Draft: func(n int) (b []byte, end func()) {
		d.drafts.Add(1)
		return make([]byte, n), func() { d.drafts.Add(-1) }
	}}}
}

// TestHandlersOfBothSidesHaveDrafts checks that a handler of a client's server has the memory that
// a server's handler has. A draft that is dropped ends as well.
func TestHandlersOfBothSidesHaveDrafts(t *testing.T) {
	for side, accept := range map[string]func(*Server, link.Session) link.Acceptor{
		"server": (*Server).Accept,
		"client": func(s *Server, session link.Session) link.Acceptor { return s.AcceptClient(session, nil) },
	} {
		d := &drafting{}
		conn := accept(New(limited(0), Config{}), d)
		session := HandlerSession(context.WithValue(t.Context(), connKey{}, conn.(*serverConn)))
		b := call.Draft(session, 1<<20)
		if n := d.drafts.Load(); n != 1 {
			t.Errorf("a handler on the %s's side has %d drafts, want 1", side, n)
		}
		b.Free()
		if n := d.drafts.Load(); n != 0 {
			t.Errorf("%d drafts of the %s's side have not ended", n, side)
		}
		_ = call.Draft(session, 1<<20)
		leak.Eventually(t, "a draft that is dropped ends", func() bool {
			runtime.GC()
			return d.drafts.Load() == 0
		})
	}
	if s := HandlerSession(t.Context()); s != nil {
		t.Errorf("a context that is no handler's has the session %v", s)
	}
	if b := call.Draft(nil, 1<<20); b.Len() != 1<<20 {
		t.Errorf("without a session there are %d bytes", b.Len())
	}
}
