package call

import (
	"context"
	"io"
	"net/http"
	"sync"

	"google.golang.org/grpc"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
)

// Calls in both directions. A client may have a Server, which accepts the client's end of
// a session as it accepts the sessions of listeners. A handler on either side gets a
// connection for calls to the peer from its context.

type connKey struct{}

// PeerConn returns the connection for calls to the peer that made the call of ctx. It returns nil
// if ctx does not come from a nearcall server.
func PeerConn(ctx context.Context) grpc.ClientConnInterface {
	c, ok := ctx.Value(connKey{}).(*serverConn)
	if !ok {
		return nil
	}
	return c.peerConn()
}

// WebSocketRequest returns the request that opened the WebSocket over which the call of ctx came,
// or nil if there is none.
func WebSocketRequest(ctx context.Context) *http.Request {
	if c, ok := ctx.Value(connKey{}).(*serverConn); ok && c.peer.Request != nil {
		return c.peer.Request()
	}
	return nil
}

// peerConn returns the connection for calls to the peer, and makes it on first use.
func (c *serverConn) peerConn() grpc.ClientConnInterface {
	c.callsMu.Lock()
	if c.calls == nil {
		c.calls = c.server.cfg.PeerConn(c.session)
	}
	calls, closed := c.calls, c.callsClosed
	c.callsMu.Unlock()
	if closed {
		c.closePeerConn() // again: it might have been made just now
	}
	return calls
}

// closePeerConn makes later calls to the peer fail. It must be called without callsMu: callbacks of
// calls that end may ask for the peer.
func (c *serverConn) closePeerConn() {
	c.callsMu.Lock()
	c.callsClosed = true
	calls := c.calls
	c.callsMu.Unlock()
	if conn, ok := calls.(io.Closer); ok {
		_ = conn.Close()
	}
}

// AcceptClient is Accept for the client's end of a session, whose peer calls s. Methods of s
// affect only these calls, not the session. counter counts them, and may be nil.
func (s *Server) AcceptClient(session link.Session, counter options.CallCounter) link.Acceptor {
	side := &clientSide{Session: session}
	side.conn = newServerConn(s, side)
	side.conn.admission.counter = counter
	if !s.addConn(side.conn) {
		return nil
	}
	return side.conn
}

// A clientSide is the client's end of a session for the client's Server.
type clientSide struct {
	link.Session
	conn    *serverConn
	closing sync.Once
}

// Close implements [link.Session]. It ends the peer's calls, and leaves the session to the client.
func (c *clientSide) Close(reason error) error {
	c.closing.Do(func() {
		c.Session.Drain()
		c.conn.Closed(reason)
		go func() {
			<-c.Session.Written()
			c.conn.Gone()
		}()
	})
	return nil
}
