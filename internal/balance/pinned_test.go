package balance

import (
	"errors"
	"testing"

	"google.golang.org/grpc/balancer"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/transport/grpcgo"
)

// A call picks a connection to an ordinary server. Before grpc-go makes it, a server of nearcall may
// have replaced that one. The call is then made again, over the session of the new server.
func TestACallIsMadeOnlyOverTheConnectionThatWasPicked(t *testing.T) {
	sc := &subConn{channel: &Channel{}}
	sc.ready.Store(true)
	connect := func() (c *current, end func()) {
		c = &current{pinned: true, Session: grpcgo.NewSession(nil, "", "", link.Peer{}, func() {})}
		return c, sc.begin(c)
	}
	first, end := connect()
	p := &pin{pinned: &pinned{sc.channel, sc, first}}
	if _, err := p.result(&picker{}); err != nil {
		t.Fatalf("on its connection: %v", err)
	}
	for _, replace := range []func(){end, func() { connect() }} {
		replace()
		p := &pin{pinned: &pinned{sc.channel, sc, first}}
		_, err := p.result(&picker{})
		var lost link.Unprocessed
		if !errors.As(p.lost(err), &lost) || !lost.Unsent {
			t.Errorf("after its connection: %v, want an error that says that the call was not sent", p.lost(err))
		}
	}
}

// A refusal whose error grpc-go does not tell, because a send has met it, has an error all the same.
func TestARefusalHasAnError(t *testing.T) {
	p := &pin{pinned: &pinned{channel: &Channel{}}}
	p.done(balancer.DoneInfo{BytesSent: true})
	p.end()
	var lost link.Unprocessed
	if err := p.lost(errUnpinned); !errors.As(err, &lost) || lost.Err == nil || lost.Unsent {
		t.Errorf("the call ends with %#v", err)
	}
}
