package forward

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/relay"
	"github.com/nearcall/nearcall/internal/sniff"
	"github.com/nearcall/nearcall/internal/transport/grpcgo"
)

// NewServer returns a *grpc.Server whose listeners take nearcall's clients as well as ordinary gRPC
// clients. It is for libraries that listen and serve themselves and take a function that makes the
// *grpc.Server, such as ServeConfig.GRPCServer of hashicorp/go-plugin. Register services, serve and
// stop the *grpc.Server as any other.
//
// If opts has [grpc.Creds], the server takes ordinary gRPC clients only: go-plugin passes them with
// AutoMTLS. A unix socket that the library listens at becomes shared memory, if the client agrees,
// and if the library has not wrapped the connection.
//
// Each connection of a nearcall client is one of HTTP/2 to the *grpc.Server, in memory. So all its
// options apply, Stop and GracefulStop end these connections as any other, and handlers get the
// caller's whole peer. But a call costs HTTP/2 on both sides, even if it came over shared memory.
// Nearcall's clients can send messages of up to 4 MiB: for more see [NewServerWith].
func NewServer(opts []grpc.ServerOption) *grpc.Server { return NewServerWith()(opts) }

// NewServerWith returns a function like [NewServer] with options for the connections of nearcall's
// clients. Of these, [nearcall.MaxRecvMsgSize] and the options of connections apply, such as
// [nearcall.MaxSharedMemory], [nearcall.ConnectionTimeout] and [nearcall.KeepaliveParams]. The
// others have no effect.
func NewServerWith(near ...nearcall.ServerOption) func([]grpc.ServerOption) *grpc.Server {
	return func(opts []grpc.ServerOption) *grpc.Server {
		h := &handshaker{TransportCredentials: insecure.NewCredentials(), pipes: &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}}
		h.server = grpc.NewServer(append([]grpc.ServerOption{grpc.Creds(h)}, opts...)...)
		h.near = nearcall.NewServer(append(slices.Clone(near), nearcall.OtherClients(0), options.SetServer(func(o *options.Server) {
			o.AcceptSession, h.limit = h.accept, o.MaxRecv
		}))...)
		h.pipes.stopped = func() { go h.near.GracefulStop() } // it ends handshakes
		return h.server
	}
}

// A handshaker is the credentials of server if the user has set none. grpc-go passes each new
// connection to the credentials first, so they can take the connections of nearcall's clients.
type handshaker struct {
	credentials.TransportCredentials
	server *grpc.Server
	near   *nearcall.Server
	limit  int // of messages from nearcall's clients
	pipes  *pipes
	once   sync.Once // begins to serve pipes
}

// ServerHandshake implements [credentials.TransportCredentials]. It returns when the handshake of a
// nearcall client has ended, because grpc-go then removes the deadline of the connection.
func (h *handshaker) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if p, ok := conn.(*pipe); ok {
		return p, p.peer.AuthInfo, nil
	}
	begun, isHTTP2, err := sniff.Begin(conn)
	switch {
	case err != nil:
		return nil, nil, err
	case isHTTP2:
		return begun, nil, nil
	}
	h.once.Do(func() { go func() { _ = h.server.Serve(h.pipes) }() })
	ended := make(chan struct{})
	go func() {
		_ = h.near.ServeConn(begun)
		close(ended)
	}()
	select {
	case <-begun.Over:
	case <-ended:
	}
	return nil, nil, credentials.ErrConnDispatched
}

var errStopped = errors.New("the *grpc.Server is stopped")

// accept connects a nearcall client to server, which ends the connection when it stops.
func (h *handshaker) accept(client link.Session) link.Acceptor {
	over := make(chan struct{}) // closed when the client has received everything from the server
	dial := func(ctx context.Context, _ string) (net.Conn, error) { return h.pipes.dial(ctx, client.Peer(), over) }
	to, err := grpcgo.Dialer{Target: "passthrough:///server", Options: []grpc.DialOption{grpc.WithContextDialer(dial)}}.Dial(context.Background())
	if err != nil {
		_ = client.Close(err)
		close(over)
		return nil
	}
	go func() {
		defer close(over)
		select {
		case <-client.Ended():
		case <-to.Done():
			client.Retire()
			<-to.Ended()
			select {
			case <-client.Written():
			case <-time.After(patience):
			}
			_ = client.Close(errStopped)
		}
		to.Retire()
	}()
	return &relay.Acceptor{To: to, Limit: h.limit, Go: func(f func()) { go f() }}
}

// patience is how long a client that has no calls may take to receive the end of its last ones.
const patience = 10 * time.Second

// pipes is a listener that accepts connections in memory. It implements [net.Listener].
type pipes struct {
	conns   chan net.Conn
	closed  chan struct{}
	stopped func()
}

// dial returns a connection that server accepts, with the peer as its client.
func (l *pipes) dial(ctx context.Context, peer *link.Peer, over <-chan struct{}) (net.Conn, error) {
	here, there := net.Pipe()
	left := make(chan struct{})
	client := &caller{here, sync.OnceFunc(func() { close(left) })}
	select {
	case l.conns <- &pipe{Conn: there, peer: peer, left: left, over: over}:
		return client, nil
	case <-l.closed:
		return nil, errStopped
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener]. grpc-go calls it once.
func (l *pipes) Close() error {
	close(l.closed)
	l.stopped()
	return nil
}

func (*pipes) Addr() net.Addr {
	return &net.UnixAddr{Net: "nearcall", Name: "connections of nearcall's clients"}
}

// A pipe is the server's end of a connection in memory. It implements [net.Conn].
type pipe struct {
	net.Conn
	peer *link.Peer
	left <-chan struct{} // closed when the other end is
	over <-chan struct{} // see accept
}

func (p *pipe) RemoteAddr() net.Addr { return p.peer.Addr }
func (p *pipe) LocalAddr() net.Addr  { return p.peer.LocalAddr }

// Close implements [net.Conn]. A GracefulStop returns when all connections are closed, and then the
// program may exit. So if the other end was closed first, Close waits until the client has
// everything.
func (p *pipe) Close() error {
	err := p.Conn.Close()
	select {
	case <-p.left:
		<-p.over
	default:
	}
	return err
}

// A caller is the other end of a pipe.
type caller struct {
	net.Conn
	leave func()
}

// Close implements [net.Conn].
func (c *caller) Close() error {
	c.leave()
	return c.Conn.Close()
}
