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

	"github.com/nearcall/nearcall/internal/codec"
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
	own, err := c.begin(ctx, ci, mc, opts)
	if err != nil {
		ci.finished(err)
		return nil, err
	}
	s := &clientStream{client: c, desc: desc, info: ci, method: method, md: own, base: ctx, waiter: wait.WaiterOf(ctx)}
	var md metadata.MD
	if s.first.ctx, s.first.stats, md, err = c.beginAttempt(ctx, method, ci, desc, own, firstAttempt); err != nil {
		ci.finished(err)
		return nil, err
	}
	if err := s.start(md, nil); err != nil {
		return nil, err
	}
	return s, nil
}

var errNilDesc = status.Error(codes.Internal, "nearcall: a stream needs a grpc.StreamDesc; generated code passes it")

// start opens the stream with the first attempt, and with o unless that is nil.
// On failure it reports to those who asked.
func (s *clientStream) start(md metadata.MD, o *link.CallHeader) error {
	a := &s.first
	a.call, s.cur = s, a
	if err := s.open(s.base, a, s.info, md, o); err != nil {
		s.info.finished(err)
		return err
	}
	s.kept = s.room[:0]
	if a.peer.Local && !s.info.retry.hasPolicy() { // Open refuses there, and nothing else
		s.committed, s.from, s.to = true, a, a
	}
	if err := s.client.add(s); err != nil {
		err = linkStatus(err)
		s.finish(err)
		return err
	}
	if s.desc != unaryDesc { // of which Invoke learns, and ends it before it returns
		a.stream.OnAbort(a.aborted)
	}
	s.watch(a)
	return nil
}

// clientStream implements grpc.ClientStream over a link.Stream, or two: see
// attempt.go.
type clientStream struct {
	client *Client
	desc   *grpc.StreamDesc
	info   *callInfo
	method string
	md     metadata.MD     // what the user sends
	base   context.Context // of the call
	waiter wait.Waiter     // the task that base is of; nil for goroutines
	first  attempt

	// Guarded by client.mu.
	next, prev *clientStream
	listed     bool

	// The sender's.
	sendFrame link.Frame
	sendTurns turns
	sentLast  bool
	to        *attempt // what is sent with, once the call is committed

	// Guarded by recvMu, which whoever receives frames holds.
	recvMu    wait.Mutex
	recvFrame link.Frame
	recvTurns turns
	from      *attempt  // what anything was received with; nil before, unless the call is committed
	received  bool      // a message arrived
	refusal   error     // why replies are not taken, though the header has arrived
	end       *link.End // the end arrived
	recvErr   error     // what RecvMsg returns from now on

	retryMu wait.Mutex // held by who makes the call again; before mu

	mu        sync.Mutex
	cur       *attempt
	retrying  bool
	stopRetry func()  // ends that
	committed bool    // no other attempt is made
	gaveUp    error   // why nothing more is to be done
	kept      []step  // what was sent, until the call is committed
	room      [1]step // of kept
	keptSize  int     // in bytes
	header    metadata.MD
	headerIn  bool          // header is known, or known to be none
	headerFor []wait.Parker // of those who wait, in receiveUntil, while another goroutine receives
	trailer   metadata.MD
	finished  bool
	atEnd     []func()
	ctx       context.Context // made when somebody asks
	cancel    context.CancelFunc
}

// Context implements grpc.ClientStream. It ends with the call.
func (s *clientStream) Context() context.Context {
	s.settle()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx == nil {
		a := s.cur
		p := &peer.Peer{Addr: a.peer.Addr, LocalAddr: a.peer.LocalAddr, AuthInfo: a.peer.AuthInfo}
		s.ctx, s.cancel = context.WithCancel(clientContext{peer.NewContext(a.ctx, p), s})
		if s.finished {
			s.cancel()
		}
	}
	return s.ctx
}

// Trailer implements grpc.ClientStream.
func (s *clientStream) Trailer() metadata.MD {
	s.settle()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trailer.Copy()
}

// SendMsg implements grpc.ClientStream.
func (s *clientStream) SendMsg(m any) error {
	s.sendTurns.pass(s.waiter)
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
	f.Msg, f.HasMsg, f.EndSend = messageOf(m, s.info.codec), true, !s.desc.ClientStreams
	s.sentLast = f.EndSend
	defer func() { f.Msg = link.Message{} }()
	if err := checkSize(&f.Msg, s.info.maxSend); err != nil {
		return err
	}
	s.checkContext()
	err := s.encodeToKeep(&f.Msg)
	if err == nil {
		err = s.transmit(f, &step{msg: f.Msg, hasMsg: true, end: f.EndSend, value: m})
	}
	if err != nil {
		var refused *link.SendError
		if errors.As(err, &refused) {
			return sendStatus(refused)
		}
		return io.EOF
	}
	return nil
}

// encodeToKeep encodes a message that the user may change before it is sent
// again. Nobody writes to its bytes, and nothing is done when they are freed.
func (s *clientStream) encodeToKeep(m *link.Message) (err error) {
	if s.to != nil || s.desc == unaryDesc || s.info.codec == codec.Shared() {
		return nil // a unary call's request does not change before Invoke returns, and a shared message never does
	}
	a, replayable := s.attempt()
	if !replayable {
		s.to = a
		return nil
	}
	*m, err = m.Encode()
	return err
}

// checkContext aborts a stream whose context is done: what watches the context
// may be late.
func (s *clientStream) checkContext() {
	if err := link.ContextErr(s.base); err != nil {
		s.abort(err)
	}
}

// CloseSend implements grpc.ClientStream. It may be repeated, and returns nil.
func (s *clientStream) CloseSend() error {
	if s.sentLast {
		return nil
	}
	s.sentLast = true
	s.checkContext()
	_ = s.transmit(&link.Frame{EndSend: true}, &step{end: true}) // RecvMsg has the status
	return nil
}

// RecvMsg implements grpc.ClientStream.
func (s *clientStream) RecvMsg(m any) error {
	s.recvTurns.pass(s.waiter)
	s.recvMu.Lock(s.waiter)
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
	if s.end == nil && s.refusal == nil {
		s.checkContext()
		got, err := s.nextMessage(m)
		if got && s.refusal == nil {
			s.received = true
			s.from.stats.received(m, s.info.codec)
			if e := s.recvFrame.End; e != nil { // it came together with the message, and counts after it
				s.gotEnd(e)
			}
			return nil
		}
		if err != nil && s.refusal == nil {
			return s.fail(err)
		}
	}
	if s.refusal != nil {
		return s.fail(s.refusal)
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
	for {
		a := s.from
		if a == nil {
			a, _ = s.attempt()
		}
		if got, done, err := s.takeFrom(a, to); done {
			return got, err
		}
	}
}

// takeFrom takes a frame of a. Unless it is done there is more to be taken,
// perhaps with another attempt. recvMu is held.
func (s *clientStream) takeFrom(a *attempt, to link.Sink) (got, done bool, err error) {
	f := &s.recvFrame
	f.Sink = to
	defer func() { f.Dst = nil }()
	err = a.stream.Recv(f)
	if why, failed := s.failureOf(f, err); failed {
		err := s.again(a, why)
		if err != nil && why.end != nil {
			s.end = why.end
			if s.isFinished() {
				s.recvErr = err // which says more than the end
			}
			s.setHeader(nil)
		}
		return false, err != nil, err
	}
	first := s.from == nil
	if !s.taken(a) {
		return false, false, nil
	}
	switch {
	case f.Header != nil:
		s.gotHeader(f.Header)
	case first && err == nil: // the header comes before all else, or the peer sends none
		s.setHeader(nil)
	}
	if f.End != nil && !f.Got {
		s.gotEnd(f.End)
	}
	if err != nil {
		return false, true, linkStatus(err)
	}
	return f.Got, f.Got || f.End != nil || to.Dst == nil, nil
}

func (s *clientStream) gotHeader(md metadata.MD) {
	s.refusal = s.info.checkReply(md)
	s.from.stats.inHeader(md, s.info.subtype)
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
		s.info.fill(s.cur.peer, s.header, s.trailer)
	}
	s.mu.Unlock()
	for _, p := range waiting {
		p.Unpark()
	}
}

func (s *clientStream) gotEnd(e *link.End) {
	if st := statusWith(e.Status, e.Trailer); st != e.Status {
		e = &link.End{Status: st, Trailer: e.Trailer} // another's is not ours to write
	}
	s.end = e
	s.mu.Lock()
	trailer := s.setTrailer(e)
	s.mu.Unlock()
	s.from.stats.inTrailer(trailer)
	s.setHeader(nil)
}

// setTrailer makes the trailer of e known, and returns it. mu is held.
func (s *clientStream) setTrailer(e *link.End) metadata.MD {
	s.trailer = fullTrailer(e.Trailer, e.Status, s.header, s.info.subtype)
	if s.finished { // given up before its end was received
		s.info.fill(s.cur.peer, s.header, s.trailer)
	}
	return s.trailer
}

// Header implements grpc.ClientStream. It waits for the header; where the call
// ends without one it returns nil, nil, and RecvMsg has the status.
func (s *clientStream) Header() (metadata.MD, error) {
	s.receiveUntil(func() bool { return s.headerIn }, s.receiveHeader)
	s.mu.Lock()
	defer s.mu.Unlock()
	return fullHeader(s.header, s.info.subtype), nil
}

// receiveUntil waits until known, which is called with mu held: it calls
// receive, with recvMu held, or waits for another goroutine that receives and
// brings the header, the end or another attempt along.
func (s *clientStream) receiveUntil(known func() bool, receive func()) {
	is := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return known()
	}
	for !is() {
		if s.recvMu.TryLock() {
			receive()
			s.recvMu.Unlock()
			continue
		}
		s.mu.Lock()
		if known() {
			s.mu.Unlock()
			return
		}
		w := s.waiter
		if w == nil {
			w = new(wait.Pool)
		}
		p := w.Parker()
		s.headerFor = append(s.headerFor, p)
		s.mu.Unlock()
		_ = p.Park(context.Background()) // whoever ends the call makes its header known
		w.Release(p)
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
		s.recvErr = err
		if s.end != nil {
			s.recvErr = nil // RecvMsg has the status as it arrived, as in grpc-go
		}
		s.finish(err)
	} else if s.end != nil {
		// Without a header there is no message either. That the end is a good
		// one and a reply is missing is for RecvMsg to say.
		s.finish(s.end.Status.Err())
	}
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
	if err != nil && s.gaveUp == nil {
		s.gaveUp = err
	}
	a := s.cur
	if s.retrying { // who makes the call again does the rest
		stop := s.stopRetry
		s.mu.Unlock()
		stop()
		a.stream.Abort(err)
		return
	}
	s.finished = true
	s.commit()
	s.info.fill(a.peer, s.header, s.trailer)
	cancel, atEnd, stop, trailer := s.cancel, s.atEnd, a.stop, s.trailer
	s.atEnd, a.stop = nil, nil
	ended := a.ended
	s.mu.Unlock()
	if stop != nil {
		stop()
	}
	s.client.remove(s)
	if !ended {
		a.stats.end(err, trailer)
	}
	s.setHeader(nil) // before OnFinish, which may ask for it while recvMu is held
	s.info.finished(err)
	if err != nil {
		a.stream.Abort(err) // which is what RecvMsg returns from now on
	}
	if cancel != nil {
		cancel()
	}
	for _, f := range atEnd {
		f()
	}
}

func (s *clientStream) isFinished() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.finished
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
