package call

import (
	"context"
	"testing"

	"github.com/nearcall/nearcall/internal/link"
)

// A drafting session's peer reads memory that both map.
type drafting struct {
	leaving
	drafts int
}

func (d *drafting) Peer() *link.Peer {
	return &link.Peer{Draft: func(n int) (b []byte, end func()) {
		d.drafts++
		return make([]byte, n), func() { d.drafts-- }
	}}
}

// TestHandlersOfBothSidesHaveDrafts checks that a handler of a client's server has the memory that
// a server's handler has.
func TestHandlersOfBothSidesHaveDrafts(t *testing.T) {
	for side, accept := range map[string]func(*Server, link.Session) link.Acceptor{
		"server": (*Server).Accept,
		"client": func(s *Server, session link.Session) link.Acceptor { return s.AcceptClient(session, nil) },
	} {
		d := &drafting{}
		conn := accept(NewServer(ServerConfig{}), d)
		pool := BufferPoolOf(context.WithValue(t.Context(), connKey{}, conn.(*serverConn)))
		b := pool.Get(1 << 20)
		if d.drafts != 1 {
			t.Errorf("a handler on the %s's side has %d drafts, want 1", side, d.drafts)
		}
		pool.Put(b)
		if d.drafts != 0 {
			t.Errorf("%d drafts of the %s's side have not ended", d.drafts, side)
		}
	}
}
