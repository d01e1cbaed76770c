package nearcall

import (
	"context"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/connector"
	"github.com/nearcall/nearcall/internal/grpcinside"
)

// GRPC returns a *grpc.ClientConn that stands for c, for APIs that require the concrete
// type. Interceptors of c get the same one.
//
// Its calls run over c, with c's interceptors, stats handlers and default call options. Its state
// is always c's, Connect and ResetConnectBackoff act on c, Target returns c's target, and
// GetMethodConfig returns the config of [WithDefaultServiceConfig]. Closing one of the two closes
// both.
//
// GRPC creates it on first use and returns the same one afterwards. It costs four
// goroutines until it is closed; its calls cost as much as c's. For targets that go to
// grpc-go it is the connection that makes c's calls.
func (c *ClientConn) GRPC() *grpc.ClientConn {
	return c.conn.GRPC()
}

// DialOptions returns options for a library that calls grpc.NewClient or grpc.Dial itself and takes
// a []grpc.DialOption. The library's *grpc.ClientConn passes its calls to c and makes no
// connection. c uses its own target, dialer and credentials. Pass the options after all
// others: the library's interceptors then run before c's.
//
// Apart from interceptors, only call options of the library affect the calls, such as those of
// [grpc.WithDefaultCallOptions]. Give c the per-RPC credentials, the stats handlers and the service
// config that the calls need.
//
// If the library's target has no scheme, or one of dns, passthrough, unix and unix-abstract,
// Connect connects c, and the state is c's. No call waits for the state. As with all connections of
// grpc.NewClient, the state is Idle until Connect is called.
//
// The options can be used more than once. When the library closes its *grpc.ClientConn, the calls
// through it end with Canceled, as in grpc-go, and c stays open. Close c when the library no longer
// needs it. A *grpc.ClientConn that has made a call costs a goroutine until it is closed.
func (c *ClientConn) DialOptions() []grpc.DialOption {
	l := &libraries{conn: c.conn, lives: make(map[*grpc.ClientConn]context.Context)}
	// With WithUnaryInterceptor, l would run before the interceptors of a library, and skip them.
	calls := []grpc.DialOption{grpc.WithChainUnaryInterceptor(l.invoke), grpc.WithChainStreamInterceptor(l.newStream)}
	return append(calls, c.shown(nil).Options("dns", "unix", "unix-abstract")...)
}

// newGRPC returns a connection of grpc-go that stands for c, and whose Close calls shut.
func (c *ClientConn) newGRPC(shut func() error) *grpc.ClientConn {
	unary := func(ctx context.Context, method string, req, reply any, _ *grpc.ClientConn, _ grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		return c.Invoke(ctx, method, req, reply, opts...)
	}
	stream := func(ctx context.Context, desc *grpc.StreamDesc, _ *grpc.ClientConn, method string, _ grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		return c.NewStream(ctx, desc, method, opts...)
	}
	return c.shown(shut).Dial(grpc.WithChainUnaryInterceptor(unary), grpc.WithChainStreamInterceptor(stream))
}

// shown returns c for connections of grpc-go that stand for it. shut is called when one was closed; it
// may be nil.
func (c *ClientConn) shown(shut func() error) *grpcinside.Shown {
	return &grpcinside.Shown{Target: c.target, ServiceConfig: c.opts.ConfigText(), MaxAttempts: c.opts.MaxCallAttempts, Conn: c.conn, Shut: shut}
}

// libraries are the connections that libraries have made with the options of DialOptions. As in
// grpc-go, the calls of a connection end when its library closes it.
type libraries struct {
	conn connection // makes the calls

	mu    sync.Mutex
	lives map[*grpc.ClientConn]context.Context // each ends when its connection is closed
}

// lifeOf returns a context that ends when cc is closed. The first call for cc starts a goroutine
// that waits for that.
func (l *libraries) lifeOf(cc *grpc.ClientConn) context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	life := l.lives[cc]
	if life == nil {
		var end context.CancelFunc
		life, end = context.WithCancel(context.Background())
		l.lives[cc] = life
		go func() {
			for s := cc.GetState(); s != connectivity.Shutdown; s = cc.GetState() {
				cc.WaitForStateChange(context.Background(), s)
			}
			l.mu.Lock()
			delete(l.lives, cc)
			l.mu.Unlock()
			end()
		}()
	}
	return life
}

// A libraryCall is a call over a library's connection.
type libraryCall struct {
	ctx context.Context // ends with the library's, with end, and for ErrClosing with its connection
	end func()
}

func (l *libraries) begin(ctx context.Context, cc *grpc.ClientConn) *libraryCall {
	within, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.lifeOf(cc), func() { cancel(connector.ErrClosing) })
	return &libraryCall{within, func() {
		cancel(nil)
		stop()
	}}
}

// invoke is an interceptor for the unary calls of libraries.
func (l *libraries) invoke(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, _ grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if cc.GetState() == connectivity.Shutdown {
		return connector.ErrClosing
	}
	call := l.begin(ctx, cc)
	defer call.end()
	return call.errorOf(l.conn.Invoke(call.ctx, method, req, reply, opts...))
}

// errorOf returns the call's error for err. If the connection was closed, that is the error of a
// cancelled call.
func (c *libraryCall) errorOf(err error) error {
	if status.Code(err) == codes.Canceled && context.Cause(c.ctx) == connector.ErrClosing {
		return connector.ErrClosing
	}
	return err
}

// A libraryStream is a stream over a library's connection. It implements [grpc.ClientStream].
type libraryStream struct {
	grpc.ClientStream
	call     *libraryCall
	oneReply bool
}

// newStream is an interceptor for the streams of libraries.
func (l *libraries) newStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, _ grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if cc.GetState() == connectivity.Shutdown {
		return nil, connector.ErrClosing
	}
	call := l.begin(ctx, cc)
	s, err := l.conn.NewStream(call.ctx, desc, method, opts...)
	if err != nil {
		call.end()
		return nil, call.errorOf(err)
	}
	context.AfterFunc(call.ctx, call.end) // also if the library cancels ctx and never receives the end
	return &libraryStream{s, call, desc != nil && !desc.ServerStreams}, nil
}

func (s *libraryStream) Header() (metadata.MD, error) {
	md, err := s.ClientStream.Header()
	return md, s.call.errorOf(err)
}

func (s *libraryStream) SendMsg(m any) error {
	err := s.ClientStream.SendMsg(m)
	if err != nil && err != io.EOF {
		err = s.call.errorOf(err)
		s.call.end()
	}
	return err
}

func (s *libraryStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err != nil || s.oneReply {
		s.call.end()
	}
	return s.call.errorOf(err)
}
