package grpcgo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/counters"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/wait"
)

// A Session is a [link.Session] whose calls grpc-go makes. It takes new streams until it is
// retired; open streams may last longer.
type Session struct {
	conn      grpc.ClientConnInterface
	name      string // for errors
	authority string
	peer      link.Peer
	end       func()        // called after ended was closed
	done      chan struct{} // closed when no more calls are made
	ended     chan struct{} // closed after done, when all calls have ended
	counted   counters.Session

	mu      sync.Mutex
	refusal error // why no new calls are made; nil while they are
	live    map[*stream]struct{}
	unary   int // how many calls of Invoke run
}

var errLeft = errors.New("the connection to the ordinary gRPC server has ended")

// NewSession returns a session whose calls conn makes, to a peer whose connection has the given
// authority. It makes unary calls as such if peer.OneShot is set: then a policy's DoneInfo says what
// it says with grpc-go. Errors of conn can wrap [link.ErrUnprocessed]. end is called when the session
// has ended.
func NewSession(conn grpc.ClientConnInterface, name, authority string, peer link.Peer, end func()) *Session {
	peer.Blocks = true
	s := &Session{
		conn: conn, name: name, authority: authority, peer: peer, end: end,
		done: make(chan struct{}), ended: make(chan struct{}), live: make(map[*stream]struct{}),
	}
	s.counted.Begin(true, counters.GRPC)
	return s
}

// sessionOf returns a session that retires when conn is no longer ready, and closes conn at the
// end.
func sessionOf(conn *grpc.ClientConn, authority string, peer link.Peer) *Session {
	ctx, cancel := context.WithCancel(context.Background())
	s := NewSession(conn, conn.Target(), authority, peer, func() {
		cancel()
		_ = conn.Close()
	})
	go func() {
		if conn.WaitForStateChange(ctx, connectivity.Ready) {
			s.retire(errLeft)
		}
	}()
	return s
}

// Invoke implements [link.Session].
func (s *Session) Invoke(ctx context.Context, c *link.UnaryCall) error {
	if !s.peer.OneShot {
		return link.ErrNoCall
	}
	if err := link.ContextErr(ctx); err != nil {
		return err
	}
	request, err := c.Message().Freeze()
	if err != nil {
		return err
	}
	defer request.Free()
	if err := s.beginUnary(); err != nil {
		return err
	}
	var reply mem.BufferSlice
	opts := append(s.optionsOf(&c.CallHeader), grpc.Header(&c.Header), grpc.Trailer(&c.Trailer))
	err = func() error {
		defer s.endUnary() // also if an interceptor or a stats handler of the user's panics
		return s.conn.Invoke(metadata.NewOutgoingContext(ctx, c.Sent()), c.Method, &request, &reply, opts...)
	}()
	delete(c.Header, "content-type")
	c.Local = dropOwnKeys(c.Trailer, status.Convert(err))
	if err == nil {
		received := message.Encoded(reply)
		to := message.Sink{Dst: c.Reply, Codec: c.Codec, Limit: c.MaxReply}
		c.ReplyError = received.DecodeInto(&to)
		received.Free()
		c.Replied, c.ReplySize = true, to.Size
		return nil
	}
	switch {
	case errors.Is(err, link.ErrUnprocessed):
		return err
	case wait.Err(ctx) != nil:
		return link.ContextEnd(wait.DoneErr(ctx))
	}
	c.Status = status.Convert(err)
	return nil
}

// dropOwnKeys removes what grpc-go has added to the trailer of a call that has ended with st. If
// st has no details, the key for details was set by the handler, and stays. It reports whether
// the trailer had no content-type. Without a header and a content-type no gRPC server has
// answered.
func dropOwnKeys(trailer metadata.MD, st *status.Status) (local bool) {
	_, answered := trailer["content-type"]
	delete(trailer, "content-type")
	if len(st.Proto().GetDetails()) > 0 {
		delete(trailer, link.DetailsKey)
	}
	return !answered
}

func (s *Session) beginUnary() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refusal != nil {
		return link.Unprocessed{Err: s.refusal, Unsent: true}
	}
	s.unary++
	return nil
}

func (s *Session) endUnary() {
	s.mu.Lock()
	s.unary--
	s.mu.Unlock()
	s.endIfIdle()
}

// NewStream implements [link.Session].
func (s *Session) NewStream(ctx context.Context, o *link.CallHeader) (link.Stream, error) {
	if err := link.ContextErr(ctx); err != nil {
		return nil, err
	}
	st := &stream{session: s, deadline: o.Deadline}
	own := metadata.NewOutgoingContext(context.Background(), o.Sent())
	st.ctx, st.cancel = context.WithCancelCause(own)
	if !o.Deadline.IsZero() {
		var stop context.CancelFunc
		st.ctx, stop = context.WithDeadline(st.ctx, o.Deadline)
		context.AfterFunc(st.ctx, stop)
	}
	s.mu.Lock()
	if s.refusal != nil {
		err := link.Unprocessed{Err: s.refusal, Unsent: true}
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
	case errors.Is(err, link.ErrUnprocessed):
	case err != nil:
		err = link.Unprocessed{Err: err, Unsent: link.IsClosed(s.done)}
	default:
		st.inner = inner
		return st, nil
	}
	st.finish()
	return nil, err
}

var streamDesc = grpc.StreamDesc{StreamName: "any", ClientStreams: true, ServerStreams: true}

// optionsOf returns the call options of grpc-go for a call with the header o.
func (s *Session) optionsOf(o *link.CallHeader) []grpc.CallOption {
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

// Drain implements [link.Session]. It is not used: the peer makes no calls.
func (s *Session) Drain() <-chan struct{} { return s.done }

// Retire implements [link.Session].
func (s *Session) Retire() { s.retire(errors.New("the connection is retired")) }

func (s *Session) retire(reason error) {
	s.mu.Lock()
	if s.refusal == nil {
		s.refusal = fmt.Errorf("%s: %w", s.name, reason)
		close(s.done)
	}
	s.mu.Unlock()
	s.endIfIdle()
}

// endIfIdle closes grpc-go's connection once no new calls can be made and no call runs.
func (s *Session) endIfIdle() {
	s.mu.Lock()
	ends := s.refusal != nil && len(s.live) == 0 && s.unary == 0 && !link.IsClosed(s.ended)
	if ends {
		s.counted.End()
		close(s.ended)
	}
	s.mu.Unlock()
	if ends {
		s.end()
	}
}

// Close implements [link.Session].
func (s *Session) Close(reason error) error {
	s.mu.Lock()
	open := slices.Collect(maps.Keys(s.live))
	s.mu.Unlock()
	s.retire(reason)
	for _, st := range open {
		st.Abort(reason)
	}
	return nil
}

// Written implements [link.Session]. It is not used, because the peer makes no calls.
func (s *Session) Written() <-chan struct{} { return s.done }

// Done implements [link.Session].
func (s *Session) Done() <-chan struct{} { return s.done }

// Ended implements [link.Session].
func (s *Session) Ended() <-chan struct{} { return s.ended }

// Peer implements [link.Session].
func (s *Session) Peer() *link.Peer { return &s.peer }
