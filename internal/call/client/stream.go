package client

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

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/grpcinside"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/wait"
)

// NewStream starts a streaming call.
func (c *Client) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	opts = combine(c.opts.DefaultOptions, opts)
	if c.stream != nil {
		return c.stream(ctx, desc, c.cfg.GRPC(), method, c.newStream, opts...)
	}
	return c.newStream(ctx, desc, nil, method, opts...)
}

func (c *Client) newStream(ctx context.Context, desc *grpc.StreamDesc, _ *grpc.ClientConn, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if desc == nil {
		return nil, errNilDesc
	}
	s := &clientStream{client: c, info: &callInfo{ctx: ctx, method: method, desc: desc}}
	cancel, err := c.prepareCall(s.info, opts)
	if err == nil && s.info.through != nil {
		return s.info.through.NewStream(ctx, desc, method, opts...)
	}
	if err == nil {
		s.onFinish(s.info.committed)
		s.waiter = wait.WaiterOf(s.info.ctx)
		err = s.openFirstAttempt(failure{})
	}
	if err != nil {
		cancel()
		s.info.committed()
		return nil, err // a nil *clientStream in an interface would not be nil
	}
	s.onFinish(cancel)
	return s, nil
}

var errNilDesc = status.Error(codes.Internal, "nearcall: a stream needs a grpc.StreamDesc; generated code passes it")

// openFirstAttempt opens the first attempt or, if Invoke's attempt has failed with why, the next
// one. It reports a failure to the call's options.
func (s *clientStream) openFirstAttempt(why failure) error {
	a := &s.firstAttempt
	s.current = a
	if why.failed() {
		a.stream = noStream{}
		_ = s.client.add(s) // if the client is closed, there is no next attempt
		err := s.retryAttempt(a, why)
		if err != nil {
			if why.end != nil {
				s.info.calleeEnded()
			}
			s.finish(err)
		}
		return err
	}
	if err := s.openAttempt(s.info.ctx, a, s.info); err != nil {
		s.info.onFinished(err)
		return err
	}
	if a.peer.Local && !s.info.retry.hasPolicy() { // only NewStream can refuse the call
		s.commitLocked()
		s.recvAttempt, s.sendAttempt = a, a
	}
	if err := s.client.add(s); err != nil {
		err = call.LinkStatus(err)
		s.finish(err)
		return err
	}
	if !s.info.unary() { // Invoke receives until the end, and so notices an abort
		s.watchStream(a)
	}
	s.watchContext(a)
	return nil
}

// noStream is the stream of an attempt that failed without one.
type noStream struct{ link.Stream }

func (noStream) Abort(error) {}

// clientStream implements grpc.ClientStream over the link.Stream of its current attempt:
// see attempt.go. Methods that end in Locked need recvMu if they receive, and mu if not.
type clientStream struct {
	client       *Client
	info         *callInfo
	waiter       wait.Waiter // the loop of the call's context; nil for goroutines
	firstAttempt attempt
	given        []byte // the request of a unary call, if it is encoded already

	// Used only by the goroutine that sends.
	sendFrame    link.Frame
	sendYield    call.Yielder
	sentLast     bool
	sendAttempt  *attempt // the committed attempt; nil until the sender knows it
	replayMemory replayMemory

	// Guarded by recvMu, which is held to receive frames.
	recvMu      wait.Mutex // only RecvMsg waits for it, which one goroutine calls at a time
	recvFrame   link.Frame
	recvYield   call.Yielder
	recvAttempt *attempt  // the committed attempt; nil until the receiver knows it
	received    bool      // a message was received
	refusal     error     // why the header's compressor is not allowed; nil if it is allowed
	end         *link.End // nil until the end was received
	late        bool      // the end arrived after the deadline, so the deadline has ended the call
	recvErr     error     // once set, the result of RecvMsg

	retryMu wait.Mutex // held by the goroutine that retries the call; locked before mu

	mu               sync.Mutex
	current          *attempt
	retrying         bool   // the attempt is being replaced
	stopRetry        func() // cancels the retry
	committed        bool   // no further attempt is made
	giveUpReason     error  // why the call must not be retried; nil if it can be
	replayBuffer     []step // what was sent, until the call is committed
	replayBufferSize int    // in bytes
	header           metadata.MD
	headerKnown      bool          // header was received, or there is none
	headerWaiters    []wait.Parker // wait in receiveUntil while another goroutine receives
	trailer          metadata.MD
	finished         bool
	finishFuncs      []func()
	ctx              context.Context // made by the first call of Context
}

// Context implements grpc.ClientStream. The context ends with the call.
func (s *clientStream) Context() context.Context {
	s.commitAndFinish()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx == nil {
		a := s.current
		p := &peer.Peer{Addr: a.peer.Addr, LocalAddr: a.peer.LocalAddr, AuthInfo: a.peer.AuthInfo}
		var cancel context.CancelFunc
		s.ctx, cancel = context.WithCancel(clientContext{peer.NewContext(a.ctx, p), s})
		if s.finished {
			cancel()
		} else {
			s.finishFuncs = append(s.finishFuncs, cancel)
		}
	}
	return s.ctx
}

// Trailer implements grpc.ClientStream.
func (s *clientStream) Trailer() metadata.MD {
	s.commitAndFinish()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trailer.Copy()
}

// SendMsg implements grpc.ClientStream.
func (s *clientStream) SendMsg(m any) error {
	s.sendYield.BeforeMessage(s.waiter)
	last := s.sentLast
	err := s.send(m)
	switch {
	case err == io.EOF && !s.info.desc.ClientStreams:
		return nil // generated code expects nil; RecvMsg returns the status
	case err == nil || err == io.EOF:
	case s.info.sendsOn:
		s.sentLast = last
	default:
		s.finish(err)
	}
	return err
}

// send sends m. If it returns an error that is not io.EOF, nothing was sent.
func (s *clientStream) send(m any) error {
	if s.sentLast {
		return status.Error(codes.Internal, "SendMsg called after CloseSend")
	}
	f := &s.sendFrame
	f.Msg, f.HasMsg, f.EndSend = call.MessageOf(m, s.info.codec), true, !s.info.desc.ClientStreams
	if s.given != nil {
		f.Msg = message.EncodedBytes(s.given)
	}
	s.sentLast = f.EndSend
	defer func() { f.Msg = message.Message{} }()
	if a, _ := s.currentAttempt(); s.info.maxSend < call.NoLimit {
		if err := call.CheckSize(&f.Msg, s.info.maxSend, s.info.encoding, a.peer); err != nil {
			return err
		}
	}
	if s.checkContext() {
		return io.EOF // another goroutine may be about to abort the call, and the stream would still take the message
	}
	err := s.encodeForReplay(&f.Msg)
	if err == nil && s.client.stats != nil {
		err = call.MakeSizeKnown(&f.Msg)
	}
	if err == nil {
		err = s.transmit(f, &step{msg: f.Msg, hasMsg: true, end: f.EndSend, value: m})
	}
	if err != nil {
		if refused, ok := errors.AsType[*message.SendError](err); ok {
			return call.SendStatus(refused)
		}
		return io.EOF
	}
	return nil
}

// checkContext aborts the call if its context is done, and reports whether it is. The goroutine that
// watches the context may be late.
func (s *clientStream) checkContext() bool {
	err := link.ContextErr(s.info.ctx)
	if err != nil {
		s.abortCall(err)
	}
	return err != nil
}

// CloseSend implements grpc.ClientStream. It always returns nil. Repeated calls do nothing.
func (s *clientStream) CloseSend() error {
	if s.sentLast {
		return nil
	}
	s.sentLast = true
	s.checkContext()
	_ = s.transmit(&link.Frame{EndSend: true}, &step{end: true}) // RecvMsg returns the status
	return nil
}

// RecvMsg implements grpc.ClientStream.
func (s *clientStream) RecvMsg(m any) error {
	s.recvYield.BeforeMessage(s.waiter)
	s.recvMu.Lock(s.waiter)
	defer s.recvMu.Unlock()
	err := s.recvLocked(m)
	if err == nil && !s.info.desc.ServerStreams {
		// The one reply counts only if the end follows it.
		switch err = s.recvLocked(m); err {
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

// recvLocked receives one message, or the end.
func (s *clientStream) recvLocked(m any) error {
	if s.recvErr != nil {
		return s.recvErr
	}
	if s.end == nil && s.refusal == nil {
		s.checkContext()
		got, err := s.nextMessageLocked(m)
		if got && s.refusal == nil {
			s.received = true
			s.recvAttempt.stats.Received(m, s.info.codec, s.recvFrame.Size)
			if e := s.recvFrame.End; e != nil { // it arrived with the message, and counts after it
				s.onEndLocked(e)
			}
			return nil
		}
		if err != nil && s.refusal == nil {
			return s.failRecvLocked(err)
		}
	}
	if s.refusal != nil {
		return s.failRecvLocked(s.refusal)
	}
	return s.failRecvLocked(s.endErrorLocked())
}

// endErrorLocked returns the error of the end that was received: io.EOF for success.
func (s *clientStream) endErrorLocked() error {
	if s.end.Status != nil {
		s.info.calleeEnded()
		return errorOf(s.end.Status)
	}
	if !s.info.desc.ServerStreams && !s.received {
		return errNoReply
	}
	return io.EOF
}

// failRecv finishes the call with err, io.EOF for success, and returns it.
func (s *clientStream) failRecvLocked(err error) error {
	s.recvErr = err
	s.finish(err)
	return err
}

// nextMessageLocked receives frames until there is a message in m, the end, or an error.
func (s *clientStream) nextMessageLocked(m any) (got bool, err error) {
	return s.receiveFrameLocked(message.Sink{Dst: call.Wanted(m), Codec: s.info.codec, Limit: s.info.maxRecv})
}

// receiveFrameLocked is nextMessageLocked for any sink. Without a Dst it also stops after a header.
func (s *clientStream) receiveFrameLocked(to message.Sink) (got bool, err error) {
	for {
		a := s.recvAttempt
		if a == nil {
			a, _ = s.currentAttempt()
		}
		if got, done, err := s.receiveFromLocked(a, to); done {
			return got, err
		}
	}
}

// receiveFromLocked receives a frame from a. If done is false, it must be called again, perhaps with
// another attempt.
func (s *clientStream) receiveFromLocked(a *attempt, to message.Sink) (got, done bool, err error) {
	f := &s.recvFrame
	f.Sink = to
	if a.peer.Local {
		f.Compressor = s.info.encoding
	}
	defer func() { f.Dst = nil }()
	if s.late {
		return false, true, call.LinkStatus(context.DeadlineExceeded)
	}
	err = a.stream.Recv(f)
	if f.End != nil && f.End.Late {
		f.End, s.late = nil, true
		if !f.Got {
			err = context.DeadlineExceeded
		}
	}
	if why := s.info.failureOf(f.End, err, s.recvAttempt != nil || f.Header != nil || f.Got); why.failed() {
		err := s.retryAttempt(a, why)
		if err != nil && why.end != nil {
			s.info.calleeEnded()
			s.end = why.end
			if s.isFinished() {
				s.recvErr = err // err says more than the end's status
			}
			s.setHeader(nil)
		}
		return false, err != nil, err
	}
	first := s.recvAttempt == nil
	if !s.commitReceivedLocked(a) {
		return false, false, nil
	}
	switch {
	case f.Header != nil:
		s.onHeaderLocked(f.Header)
	case first && err == nil: // a header would have come first: the peer sends none
		s.setHeader(nil)
	}
	if f.End != nil && !f.Got {
		s.onEndLocked(f.End)
	}
	if err != nil {
		return false, true, call.LinkStatus(err)
	}
	return f.Got, f.Got || f.End != nil || to.Dst == nil, nil
}

func (s *clientStream) onEndLocked(e *link.End) {
	e = withDetails(e)
	s.end = e
	s.mu.Lock()
	s.recvAttempt.answered = true
	trailer := s.setTrailerLocked(e)
	s.mu.Unlock()
	s.recvAttempt.stats.InTrailer(trailer)
	s.setHeader(nil)
}

// setTrailerLocked sets the trailer to that of e and returns it.
func (s *clientStream) setTrailerLocked(e *link.End) metadata.MD {
	s.trailer = call.FullTrailer(e, s.header, s.info.subtype)
	if s.finished { // the call was finished before its end was received
		s.info.fillOptions(s.current.peer, s.header, s.trailer)
	}
	return s.trailer
}

// finish ends the call with err. Both io.EOF and nil mean success. Only the first finish has an
// effect. If header and trailer are known, finish stores them where the call's options ask for it.
// If they are received later, they are stored at that time.
func (s *clientStream) finish(err error) {
	if err == io.EOF {
		err = nil
	}
	s.mu.Lock()
	if s.finished {
		s.mu.Unlock()
		return
	}
	if err != nil && s.giveUpReason == nil {
		s.giveUpReason = err
	}
	a := s.current
	if s.retrying { // finishRetry does the rest
		stop := s.stopRetry
		s.mu.Unlock()
		stop()
		a.stream.Abort(err)
		return
	}
	s.finished = true
	s.commitLocked()
	s.info.fillOptions(a.peer, s.header, s.trailer)
	atEnd, trailer := s.finishFuncs, s.trailer
	s.finishFuncs = nil
	ended, answered := a.ended, a.answered || s.header != nil
	s.mu.Unlock()
	s.client.remove(s)
	if !ended {
		a.reportEnd(err, trailer, answered)
	}
	s.setHeader(nil) // before OnFinish, which may call Header while recvMu is held
	s.info.onFinished(err)
	if err != nil {
		a.stream.Abort(err) // RecvMsg returns err from now on
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

// onFinish calls f when the call is finished, or at once if it already is.
func (s *clientStream) onFinish(f func()) {
	s.mu.Lock()
	over := s.finished
	if !over {
		s.finishFuncs = append(s.finishFuncs, f)
	}
	s.mu.Unlock()
	if over {
		f()
	}
}

// Encodes implements [call.Encoder].
func (s *clientStream) Encodes() (message.Codec, string) {
	if a, _ := s.currentAttempt(); a.peer.Local {
		return s.info.codec, ""
	}
	return s.info.codec, s.info.encoding
}

// A clientContext is the parent of a client stream's context. It identifies the stream for
// encoderOf, and hides the grpc-go stream of a handler that made the call.
type clientContext struct {
	context.Context
	stream *clientStream
}

// Value implements [context.Context].
func (c clientContext) Value(key any) any {
	switch key {
	case call.EncoderKey{}:
		return c.stream
	case grpcinside.RPCInfoKey:
		return nil
	}
	return c.Context.Value(key)
}

// The goroutine that receives learns the header of a client's stream. A goroutine that needs the
// header receives itself, or waits for the goroutine that does.

// Header implements grpc.ClientStream. It waits for the header. If the call ends without
// one, it returns nil, nil, and RecvMsg returns the status.
func (s *clientStream) Header() (metadata.MD, error) {
	s.receiveUntil(func() bool { return s.headerKnown }, s.receiveHeaderLocked)
	s.mu.Lock()
	defer s.mu.Unlock()
	return call.FullHeader(s.header, s.info.subtype), nil
}

// receiveUntil waits until the function known returns true. If another goroutine receives, it
// waits for that one. Otherwise it calls the function receive, which can make the header or
// another attempt known. known is called with mu held, receive with recvMu held.
func (s *clientStream) receiveUntil(known func() bool, receive func()) {
	is := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return known()
	}
	for !is() {
		if s.tryReceive(receive) {
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
		s.headerWaiters = append(s.headerWaiters, p)
		s.mu.Unlock()
		_ = p.Park(context.Background()) // without a context: finish calls setHeader, which unparks
		w.Release(p)
	}
}

// tryReceive calls receive with recvMu held. It returns false if another goroutine holds recvMu.
func (s *clientStream) tryReceive(receive func()) bool {
	if !s.recvMu.TryLock() {
		return false
	}
	defer s.recvMu.Unlock() // also if a stats handler panics
	receive()
	return true
}

// receiveHeaderLocked receives until the header is known.
func (s *clientStream) receiveHeaderLocked() {
	if s.end != nil || s.recvErr != nil {
		s.setHeader(nil)
		return
	}
	s.checkContext()
	if _, err := s.receiveFrameLocked(message.Sink{}); err != nil {
		s.recvErr = err
		if s.end != nil {
			s.recvErr = nil // RecvMsg returns the status that arrived, as in grpc-go
		}
		s.finish(err)
	} else if s.end != nil {
		// Without a header no message arrives either. If the status is OK, RecvMsg reports that
		// the reply is missing.
		s.finish(errorOf(s.end.Status))
	}
}

func (s *clientStream) onHeaderLocked(md metadata.MD) {
	s.refusal = s.info.checkReply(md)
	s.recvAttempt.stats.InHeader(md, s.info.subtype)
	s.setHeader(md)
}

// setHeader makes the header known and wakes the goroutines that wait for it. A nil md means that
// none was sent. A header that is received after the call has finished still replaces nil.
func (s *clientStream) setHeader(md metadata.MD) {
	s.mu.Lock()
	if md != nil || !s.headerKnown {
		s.header, s.headerKnown = md, true
	}
	waiting := s.headerWaiters
	s.headerWaiters = nil
	if s.finished && md != nil { // the call was finished before its header was received
		s.info.fillOptions(s.current.peer, s.header, s.trailer)
	}
	s.mu.Unlock()
	for _, p := range waiting {
		p.Unpark()
	}
}

// abortCall ends the call for reason because its context has ended or its client was closed.
func (s *clientStream) abortCall(reason error) {
	s.mu.Lock()
	if s.finished {
		s.mu.Unlock()
		return
	}
	if s.giveUpReason == nil {
		s.giveUpReason = reason
	}
	reason = s.giveUpReason
	a, unheard := s.current, s.current.retryPending || s.retrying
	s.mu.Unlock()
	a.stream.Abort(reason)
	if unheard { // the stream was aborted before, so Abort has no effect
		s.finish(call.LinkStatus(reason))
	}
}

// finishAborted finishes the call, whose stream was aborted for reason. If the header has arrived,
// finishAborted receives it first.
func (s *clientStream) finishAborted(reason error) {
	s.tryReceive(func() {
		s.mu.Lock()
		known := s.headerKnown
		s.mu.Unlock()
		if !known && s.end == nil && s.recvErr == nil {
			_, _ = s.receiveFrameLocked(message.Sink{}) // does not wait: the stream is aborted
		}
	})
	s.finish(call.LinkStatus(reason))
}
