package grpcgo

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
)

// A session is a connection of grpc-go. It takes new streams while the connection is ready; open
// streams may last longer.
type session struct {
	conn      *grpc.ClientConn
	authority string
	peer      link.Peer
	leave     context.CancelFunc // ends watch
	done      chan struct{}      // closed when no more calls are made
	ended     chan struct{}      // closed after done, when all calls have ended

	mu      sync.Mutex
	refusal error // why no new calls are made; nil while they are
	over    bool  // ended is closed
	live    map[*stream]struct{}
}

var errLeft = errors.New("the connection to the ordinary gRPC server has ended")

func newSession(conn *grpc.ClientConn, authority string, peer link.Peer) *session {
	s := &session{
		conn: conn, authority: authority, peer: peer,
		done: make(chan struct{}), ended: make(chan struct{}), live: make(map[*stream]struct{}),
	}
	var ctx context.Context
	ctx, s.leave = context.WithCancel(context.Background())
	go s.watch(ctx)
	return s
}

// watch retires the session when grpc-go's connection is not ready any more.
func (s *session) watch(ctx context.Context) {
	if s.conn.WaitForStateChange(ctx, connectivity.Ready) {
		s.retire(errLeft)
	}
}

// Invoke implements [link.Session]. Unary calls are made as streams.
func (s *session) Invoke(context.Context, *link.UnaryCall) error { return link.ErrNoCall }

// NewStream implements [link.Session].
func (s *session) NewStream(ctx context.Context, o *link.CallHeader) (link.Stream, error) {
	if err := link.ContextErr(ctx); err != nil {
		return nil, err
	}
	st := &stream{session: s, deadline: o.Deadline}
	own := metadata.NewOutgoingContext(context.Background(), o.Sent())
	if o.Deadline.IsZero() {
		st.ctx, st.cancel = context.WithCancelCause(own)
	} else {
		var stop context.CancelFunc
		own, stop = context.WithDeadline(own, o.Deadline)
		st.ctx, st.cancel = context.WithCancelCause(own)
		context.AfterFunc(st.ctx, stop)
	}
	s.mu.Lock()
	if s.refusal != nil {
		err := link.Unprocessed{Err: s.refusal}
		s.mu.Unlock()
		st.cancel(nil)
		return nil, err
	}
	s.live[st] = struct{}{}
	s.mu.Unlock()
	stay := wait.AfterFunc(ctx, func() { st.cancel(nil) })
	inner, err := s.conn.NewStream(st.ctx, &streamDesc, o.Method, s.optionsOf(o)...)
	switch {
	case !stay():
		err = link.ContextEnd(wait.DoneErr(ctx))
	case err != nil:
		err = link.Unprocessed{Err: err}
	default:
		st.inner = inner
		return st, nil
	}
	st.finish()
	return nil, err
}

var streamDesc = grpc.StreamDesc{StreamName: "any", ClientStreams: true, ServerStreams: true}

// optionsOf returns the call options that make a call of grpc-go as o says.
func (s *session) optionsOf(o *link.CallHeader) []grpc.CallOption {
	limit := o.MaxReply
	if limit == 0 {
		limit = math.MaxInt32
	}
	opts := []grpc.CallOption{grpc.ForceCodecV2(rawCodec{}), grpc.MaxCallRecvMsgSize(limit), grpc.MaxCallSendMsgSize(math.MaxInt32)}
	if o.ContentSubtype != "" {
		opts = append(opts, grpc.CallContentSubtype(o.ContentSubtype))
	}
	if o.Encoding != "" {
		opts = append(opts, grpc.UseCompressor(o.Encoding))
	}
	if o.Accept != "" {
		opts = append(opts, experimental.AcceptCompressors(strings.Split(o.Accept, ",")...))
	}
	if o.Authority != "" && o.Authority != s.authority {
		opts = append(opts, grpc.CallAuthority(o.Authority))
	}
	return opts
}

// remove removes a stream that has ended.
func (s *session) remove(st *stream) {
	s.mu.Lock()
	delete(s.live, st)
	s.mu.Unlock()
	s.endIfIdle()
}

// Drain implements [link.Session]. It is not used: the peer makes no calls.
func (s *session) Drain() <-chan struct{} { return s.done }

// Retire implements [link.Session].
func (s *session) Retire() { s.retire(errors.New("the connection is retired")) }

func (s *session) retire(reason error) {
	s.mu.Lock()
	if s.refusal == nil {
		s.refusal = fmt.Errorf("%s: %w", s.conn.Target(), reason)
		close(s.done)
	}
	s.mu.Unlock()
	s.endIfIdle()
}

// endIfIdle closes grpc-go's connection once no new calls can be made and none is left.
func (s *session) endIfIdle() {
	s.mu.Lock()
	ends := s.refusal != nil && len(s.live) == 0 && !s.over
	s.over = s.over || ends
	s.mu.Unlock()
	if ends {
		s.leave()
		_ = s.conn.Close()
		close(s.ended)
	}
}

// Close implements [link.Session].
func (s *session) Close(reason error) error {
	s.mu.Lock()
	var open []*stream
	for st := range s.live {
		open = append(open, st)
	}
	s.mu.Unlock()
	s.retire(reason)
	for _, st := range open {
		st.Abort(reason)
	}
	return nil
}

// Written implements [link.Session]. It is not used, because the peer makes no calls.
func (s *session) Written() <-chan struct{} { return s.done }

// Done implements [link.Session].
func (s *session) Done() <-chan struct{} { return s.done }

// Ended implements [link.Session].
func (s *session) Ended() <-chan struct{} { return s.ended }

// Peer implements [link.Session].
func (s *session) Peer() *link.Peer { return &s.peer }
