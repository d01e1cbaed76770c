package call

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
)

func (c *Client) newStream(ctx context.Context, desc *grpc.StreamDesc, _ *grpc.ClientConn, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if desc == nil {
		return nil, errNilDesc
	}
	ci := new(callInfo)
	mc := c.cfg.Service.of(method)
	var cancel context.CancelFunc
	if mc.timeout != nil && ctx != nil {
		ctx, cancel = mc.withTimeout(ctx)
	}
	cs, err := c.beginStream(ctx, desc, ci, mc, method, opts)
	if err != nil {
		if cancel != nil {
			cancel()
		}
		return nil, err // a nil *clientStream in an interface would not be nil
	}
	if cancel != nil {
		cs.onFinish(cancel)
	}
	return cs, nil
}

func (c *Client) beginStream(ctx context.Context, desc *grpc.StreamDesc, ci *callInfo, mc *methodConfig, method string, opts []grpc.CallOption) (*clientStream, error) {
	md, err := c.begin(ctx, ci, mc, opts)
	if err != nil {
		ci.finished(err)
		return nil, err
	}
	ctx, a := c.newClientStats(ctx, method, ci, desc)
	if a != nil {
		if md, err = outgoing(ctx); err != nil { // the handler may have added to it
			a.end(err, nil)
			ci.finished(err)
			return nil, err
		}
	}
	return c.startStream(ctx, desc, ci, a, method, md, nil)
}

var errNilDesc = status.Error(codes.Internal, "nearcall: a stream needs a grpc.StreamDesc; generated code passes it")

// startStream opens a stream, with o unless that is nil. On failure it reports to those who asked.
func (c *Client) startStream(ctx context.Context, desc *grpc.StreamDesc, ci *callInfo, a *callStats, method string, md metadata.MD, o *link.Open) (*clientStream, error) {
	fail := func(err error) (*clientStream, error) {
		err = linkStatus(err)
		a.end(err, nil)
		ci.finished(err)
		return nil, err
	}
	for {
		session, err := c.cfg.Sessions.Session(ctx, ci.waitForReady)
		if err != nil {
			return fail(err)
		}
		p := session.Peer()
		if o == nil {
			o = new(link.Open)
			if err := c.open(ctx, o, ci, method, md, p); err != nil {
				return fail(err)
			}
		}
		stream, err := session.Open(ctx, o)
		if err != nil {
			if errors.Is(err, link.ErrUnprocessed) && link.IsClosed(session.Done()) {
				o = nil
				continue
			}
			return fail(err)
		}
		a.outHeader(o, p)
		s := &clientStream{client: c, desc: desc, info: ci, stream: stream, peer: p, stats: a, base: ctx}
		if err := c.add(s); err != nil {
			stream.Abort(err)
			return fail(err)
		}
		if desc != unaryDesc { // of which Invoke learns, and ends it before it returns
			stream.OnAbort(s.aborted)
		}
		if ctx.Done() != nil {
			stop := context.AfterFunc(ctx, func() { stream.Abort(contextError(ctx.Err())) })
			s.onFinish(func() { stop() })
		}
		return s, nil
	}
}

// clientStream implements grpc.ClientStream over a link.Stream.
type clientStream struct {
	client *Client
	desc   *grpc.StreamDesc
	info   *callInfo
	stream link.Stream
	peer   *link.Peer
	stats  *callStats
	base   context.Context // of the call

	// Guarded by client.mu.
	next, prev *clientStream
	listed     bool

	// The sender's.
	sendFrame link.Frame
	sentLast  bool

	// Guarded by recvMu, which whoever receives frames holds.
	recvMu    wait.Mutex
	recvFrame link.Frame
	received  bool      // a message arrived
	end       *link.End // the end arrived
	recvErr   error     // what RecvMsg returns from now on

	mu        sync.Mutex
	header    metadata.MD
	headerIn  bool          // header is known, or known to be none
	headerFor []wait.Parker // of those who wait for it while another goroutine receives
	trailer   metadata.MD
	finished  bool
	atEnd     []func()
	ctx       context.Context // made when somebody asks
	cancel    context.CancelFunc
}

// Context implements grpc.ClientStream. It ends with the call.
func (s *clientStream) Context() context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx == nil {
		p := &peer.Peer{Addr: s.peer.Addr, LocalAddr: s.peer.LocalAddr, AuthInfo: s.peer.AuthInfo}
		s.ctx, s.cancel = context.WithCancel(peer.NewContext(s.base, p))
		if s.finished {
			s.cancel()
		}
	}
	return s.ctx
}

// Trailer implements grpc.ClientStream.
func (s *clientStream) Trailer() metadata.MD {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trailer.Copy()
}

// SendMsg implements grpc.ClientStream.
func (s *clientStream) SendMsg(m any) error {
	err := s.send(m)
	if err == io.EOF && !s.desc.ClientStreams {
		return nil // generated code wants it so; RecvMsg has the status
	}
	if err != nil && err != io.EOF {
		s.finish(err)
	}
	return err
}

func (s *clientStream) send(m any) error {
	if s.sentLast {
		return status.Error(codes.Internal, "SendMsg called after CloseSend")
	}
	f := &s.sendFrame
	f.Msg, f.HasMsg, f.EndSend = link.Live(m, s.info.codec), true, !s.desc.ClientStreams
	s.sentLast = f.EndSend
	defer func() { f.Msg = link.Message{} }()
	if err := checkSize(&f.Msg, s.info.maxSend); err != nil {
		return err
	}
	s.checkContext()
	if err := s.stream.Send(f); err != nil {
		var refused *link.SendError
		if errors.As(err, &refused) {
			return sendStatus(refused)
		}
		return io.EOF
	}
	s.stats.sent(m, s.info.codec)
	return nil
}

// checkContext aborts a stream whose context is done: what watches the context
// may be late.
func (s *clientStream) checkContext() {
	if err := s.base.Err(); err != nil {
		s.stream.Abort(contextError(err))
	}
}

// CloseSend implements grpc.ClientStream. It may be repeated, and returns nil.
func (s *clientStream) CloseSend() error {
	if s.sentLast {
		return nil
	}
	s.sentLast = true
	s.checkContext()
	_ = s.stream.Send(&link.Frame{EndSend: true}) // RecvMsg has the status
	return nil
}

// RecvMsg implements grpc.ClientStream.
func (s *clientStream) RecvMsg(m any) error {
	s.recvMu.Lock()
	defer s.recvMu.Unlock()
	err := s.recv(m)
	if err == nil && !s.desc.ServerStreams {
		// The one reply counts only with the end behind it.
		switch err = s.recv(m); err {
		case io.EOF:
			return nil
		case nil:
			err = errTwoReplies
			s.recvErr = err
			s.finish(err)
		}
	}
	return err
}

// recv receives one message, or the end. recvMu is held.
func (s *clientStream) recv(m any) error {
	if s.recvErr != nil {
		return s.recvErr
	}
	if s.end == nil {
		s.checkContext()
		got, err := s.nextMessage(m)
		if got {
			s.received = true
			s.stats.received(m, s.info.codec)
			if e := s.recvFrame.End; e != nil { // it came together with the message, and counts after it
				s.gotEnd(e)
			}
			return nil
		}
		if err != nil {
			return s.fail(err)
		}
	}
	return s.fail(s.outcome())
}

// outcome is what the end, which has arrived, means.
func (s *clientStream) outcome() error {
	if s.end.Status != nil {
		return s.end.Status.Err()
	}
	if !s.desc.ServerStreams && !s.received {
		return errNoReply
	}
	return io.EOF
}

// fail ends the call with err, io.EOF for success.
func (s *clientStream) fail(err error) error {
	s.recvErr = err
	s.finish(err)
	return err
}

// nextMessage takes frames until there is a message in m, the end, or an
// error. recvMu is held.
func (s *clientStream) nextMessage(m any) (got bool, err error) {
	return s.take(link.Sink{Dst: wanted(m), Codec: s.info.codec, Limit: s.info.maxRecv})
}

// take is nextMessage for any sink. Without a Dst it is content with a header.
func (s *clientStream) take(to link.Sink) (got bool, err error) {
	f := &s.recvFrame
	f.Sink = to
	defer func() { f.Dst = nil }()
	for {
		err := s.stream.Recv(f)
		if f.Header != nil {
			s.gotHeader(f.Header)
		}
		if f.End != nil && !f.Got {
			s.gotEnd(f.End)
		}
		switch {
		case err != nil:
			return false, linkStatus(err)
		case f.Got:
			return true, nil
		case f.End != nil, to.Dst == nil:
			return false, nil
		}
	}
}

func (s *clientStream) gotHeader(md metadata.MD) {
	if s.stats != nil {
		s.stats.inHeader(fullHeader(md, s.info.subtype))
	}
	s.setHeader(md)
}

// setHeader makes md known: the header, or nil where there is none, which a
// header that was on its way when the call was given up still overrules.
func (s *clientStream) setHeader(md metadata.MD) {
	s.mu.Lock()
	if md != nil || !s.headerIn {
		s.header, s.headerIn = md, true
	}
	waiting := s.headerFor
	s.headerFor = nil
	if s.finished && md != nil { // given up before it was received
		s.info.fill(s.peer, s.header, s.trailer)
	}
	s.mu.Unlock()
	for _, p := range waiting {
		p.Unpark()
	}
}

func (s *clientStream) gotEnd(e *link.End) {
	s.end = e
	s.mu.Lock()
	trailer := fullTrailer(e.Trailer, e.Status, s.header, s.info.subtype)
	s.trailer = trailer
	if s.finished { // given up before its end was received
		s.info.fill(s.peer, s.header, s.trailer)
	}
	s.mu.Unlock()
	s.stats.inTrailer(trailer)
	s.setHeader(nil)
}

// Header implements grpc.ClientStream. It waits for the header; where the call
// ends without one it returns nil, nil, and RecvMsg has the status.
func (s *clientStream) Header() (metadata.MD, error) {
	for {
		s.mu.Lock()
		if s.headerIn {
			md := s.header
			s.mu.Unlock()
			return fullHeader(md, s.info.subtype), nil
		}
		s.mu.Unlock()
		if s.recvMu.TryLock() {
			s.receiveHeader()
			s.recvMu.Unlock()
			continue
		}
		// Another goroutine receives; it brings the header along.
		s.mu.Lock()
		if s.headerIn {
			s.mu.Unlock()
			continue
		}
		p := wait.NewGoroutine()
		s.headerFor = append(s.headerFor, p)
		s.mu.Unlock()
		_ = p.Park(context.Background()) // whoever ends the call makes its header known
	}
}

// receiveHeader receives until the header is known. recvMu is held.
func (s *clientStream) receiveHeader() {
	if s.end != nil || s.recvErr != nil {
		s.setHeader(nil)
		return
	}
	s.checkContext()
	if _, err := s.take(link.Sink{}); err != nil {
		s.fail(err)
	} else if s.end != nil {
		// Without a header there is no message either. That the end is a good
		// one and a reply is missing is for RecvMsg to say.
		s.finish(s.end.Status.Err())
	}
}

// aborted learns that the stream was aborted: by the context, or because the
// session ended. The call is over, also when nobody receives. A header that
// had arrived is still taken in.
func (s *clientStream) aborted(reason error) {
	if s.recvMu.TryLock() {
		s.mu.Lock()
		known := s.headerIn
		s.mu.Unlock()
		if !known && s.end == nil && s.recvErr == nil {
			_, _ = s.take(link.Sink{}) // does not wait: the stream is aborted
		}
		s.recvMu.Unlock()
	}
	s.finish(linkStatus(reason))
}

// finish ends the call with err, io.EOF or nil for success. Only the first
// call counts. When it returns options have what is known of the call; what
// arrived and is received later is added then.
func (s *clientStream) finish(err error) {
	if err == io.EOF {
		err = nil
	}
	s.mu.Lock()
	if s.finished {
		s.mu.Unlock()
		return
	}
	s.finished = true
	s.info.fill(s.peer, s.header, s.trailer)
	cancel, atEnd, trailer := s.cancel, s.atEnd, s.trailer
	s.atEnd = nil
	s.mu.Unlock()
	s.client.remove(s)
	s.stats.end(err, trailer)
	s.info.finished(err)
	if err != nil {
		s.stream.Abort(err) // which is what RecvMsg returns from now on
	}
	s.setHeader(nil)
	if cancel != nil {
		cancel()
	}
	for _, f := range atEnd {
		f()
	}
}

// onFinish has f called when the call is over, at once if it is.
func (s *clientStream) onFinish(f func()) {
	s.mu.Lock()
	over := s.finished
	if !over {
		s.atEnd = append(s.atEnd, f)
	}
	s.mu.Unlock()
	if over {
		f()
	}
}
