package forward

import (
	"context"
	"net"
	"reflect"
	"runtime"
	"sync"
	"time"
	_ "unsafe" // for go:linkname

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/grpclog"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/transport/sock"
)

// NewServer returns a *grpc.Server whose listeners take nearcall's clients as well as ordinary gRPC
// clients. It is for libraries that listen and serve themselves and take a function that makes the
// *grpc.Server, such as ServeConfig.GRPCServer of hashicorp/go-plugin. Register services, serve and
// stop the *grpc.Server as any other. It forwards the calls of nearcall's clients to itself, as
// [To] does.
//
// A unix socket that the library listens at becomes shared memory, if the client agrees, and if the
// library has not wrapped the connection or secured it with TLS.
//
// # Options
//
// These options apply to nearcall's clients, too: [grpc.Creds], MaxRecvMsgSize, MaxSendMsgSize,
// interceptors, stats handlers, UnknownServiceHandler, ForceServerCodecV2, NumStreamWorkers and
// WaitForHandlers. Stats handlers see each of their calls as a connection. ConnectionTimeout applies
// to the handshake of the credentials and the first bytes.
//
// These have no effect on nearcall's clients, which get the defaults of [nearcall.NewServer]:
// keepalive, windows, buffers and their pool, MaxConcurrentStreams, MaxHeaderListSize,
// HeaderTableSize and InTapHandle. Their calls fail if opts has RPCCompressor.
//
// # Stopping
//
// Stop and GracefulStop end the connections of nearcall's clients, too. GracefulStop waits up to
// 10 seconds for their calls, and the calls that still run then fail with Unavailable. Stop does not
// cut this wait short.
func NewServer(opts []grpc.ServerOption) *grpc.Server {
	given := grpc.NewServer(opts...) // only to read its options
	defer given.Stop()
	credsOf, ok := serverCredentials.(func(*grpc.Server) credentials.TransportCredentials)
	if !ok {
		grpclog.Component("nearcall").Warning("forward.NewServer does not know this version of grpc-go: the server takes no clients of nearcall")
		return grpc.NewServer(opts...)
	}
	h := &handshaker{TransportCredentials: credsOf(given)}
	if h.plain = h.TransportCredentials == nil; h.plain {
		h.TransportCredentials = insecure.NewCredentials()
	}
	h.server = grpc.NewServer(append(append([]grpc.ServerOption{grpc.StatsHandler(peers{})}, opts...), grpc.Creds(h))...)
	h.near = nearcall.NewServer(To(h.server), nearcall.OtherClients(0), nearcall.MaxRecvMsgSize(maxRecv(given)))
	return h.server
}

type peerKey struct{}

// peers gives forwarded calls the peer of their caller. grpc-go makes one of an HTTP request, which has
// only TLS. As the first stats handler it comes before all others, and before interceptors.
type peers struct{}

// TagRPC implements [stats.Handler].
func (peers) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	if p, ok := ctx.Value(peerKey{}).(*peer.Peer); ok {
		return peer.NewContext(ctx, p)
	}
	return ctx
}

// TagConn implements [stats.Handler].
func (peers) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return peers{}.TagRPC(ctx, nil)
}

// HandleRPC implements [stats.Handler].
func (peers) HandleRPC(context.Context, stats.RPCStats) {}

// HandleConn implements [stats.Handler].
func (peers) HandleConn(context.Context, stats.ConnStats) {}

// serverCredentials is a func(*grpc.Server) credentials.TransportCredentials. grpc-go sets it, for
// its own packages.
//
//go:linkname serverCredentials google.golang.org/grpc/internal.GetServerCredentials
var serverCredentials any

// maxRecv returns the size of the largest message that s receives, so that a client cannot make the
// server keep a larger one before s refuses it.
func maxRecv(s *grpc.Server) int {
	if opts := reflect.ValueOf(s).Elem().FieldByName("opts"); opts.Kind() == reflect.Struct {
		if n := opts.FieldByName("maxReceiveMessageSize"); n.Kind() == reflect.Int {
			return int(n.Int())
		}
	}
	return 4 << 20 // grpc-go's default
}

// A handshaker is the credentials of server. grpc-go passes each new connection to the credentials
// and to nothing before, so they take the connections of nearcall's clients.
type handshaker struct {
	credentials.TransportCredentials      // the user's
	plain                            bool // the user has none
	server                           *grpc.Server
	near                             *nearcall.Server
	once                             sync.Once // begins to watch for the end of server
}

// ServerHandshake implements [credentials.TransportCredentials]. The connection of a nearcall client
// it serves until it ends. So grpc-go, when it stops, waits for all such connections before it ends
// the calls that were forwarded to it.
func (h *handshaker) ServerHandshake(raw net.Conn) (conn net.Conn, auth credentials.AuthInfo, err error) {
	conn = raw
	if !h.plain {
		if conn, auth, err = h.TransportCredentials.ServerHandshake(raw); err != nil {
			return nil, nil, err
		}
	}
	begun, isHTTP2, err := sock.Begin(conn, auth)
	switch {
	case err != nil:
		return nil, nil, err
	case isHTTP2:
		return begun, auth, nil
	}
	h.once.Do(func() { go func() { _ = h.server.Serve(&watcher{h.near, make(chan struct{})}) }() })
	_ = h.near.ServeConn(begun)
	return nil, nil, credentials.ErrConnDispatched
}

// A watcher is a listener that accepts nothing. A *grpc.Server closes it when it stops, and the
// watcher then stops near.
type watcher struct {
	near   *nearcall.Server
	closed chan struct{}
}

// Accept implements [net.Listener].
func (w *watcher) Accept() (net.Conn, error) {
	<-w.closed
	return nil, net.ErrClosed
}

// patience is how long GracefulStop waits for the calls of nearcall's clients. Nothing tells the
// watcher of a Stop in the meantime.
const patience = 10 * time.Second

// Close implements [net.Listener]. grpc-go calls it once, with its lock held, which the end of each
// forwarded call takes. So Close does not wait.
func (w *watcher) Close() error {
	close(w.closed)
	if !calledBy("google.golang.org/grpc.(*Server).GracefulStop") {
		go w.near.Stop()
		return nil
	}
	go func() {
		defer time.AfterFunc(patience, w.near.Stop).Stop()
		w.near.GracefulStop()
	}()
	return nil
}

// calledBy reports whether a function is on the stack of this goroutine, near its end.
func calledBy(function string) bool {
	pcs := make([]uintptr, 16)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs)])
	for {
		frame, more := frames.Next()
		if frame.Function == function || !more {
			return frame.Function == function
		}
	}
}

// Addr implements [net.Listener].
func (*watcher) Addr() net.Addr { return address{} }

type address struct{}

// Network implements [net.Addr].
func (address) Network() string { return "nearcall" }

// String implements [net.Addr].
func (address) String() string { return "connections of nearcall's clients" }
