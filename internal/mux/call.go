package mux

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/nearcall/nearcall/internal/encoded"
	"github.com/nearcall/nearcall/internal/lifecycle"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/mux/waits"
	"github.com/nearcall/nearcall/internal/wait"
	"github.com/nearcall/nearcall/internal/wire"
)

// The methods for those who own a session and for those who make calls over it.

// PromptOf returns conn if it is a Prompt, a new Prompt if it is a bare socket, and nil otherwise.
func PromptOf(conn Conn) Prompt {
	if p, ok := conn.(Prompt); ok {
		return p
	}
	return newSocket(conn)
}

// New returns a session over conn and takes ownership of conn. Nothing is read or
// written before Start.
func New(conn Conn, o Options) *Session {
	o.CloseTimeout = cmp.Or(o.CloseTimeout, 5*time.Second)
	o.Peer.OneShot = true
	s := &Session{
		opts:          o,
		conn:          conn,
		helloReceived: make(chan struct{}),
		done:          make(chan struct{}),
		allCallsEnded: make(chan struct{}),
		gone:          make(chan struct{}),
		drained:       make(chan struct{}),
		hello:         wire.Hello{Version: wire.Version, Stream: wire.MinWindow, Connection: wire.MinWindow, Block: wire.MinBlock},
		streams:       make(map[uint64]*stream),
		live:          make(map[*stream]struct{}),
		connIn:        o.Config.ConnWindow,
	}
	s.raw = PromptOf(conn)
	if s.placer, _ = conn.(Placer); s.placer != nil {
		s.opts.Peer.Draft = s.draft
	}
	s.reading.dec.Places, s.reading.dec.Block = s.placer != nil, o.Config.MaxHeader
	s.reading.spinBudget.earned = maxEarned
	s.writing.connOut = s.hello.Connection
	s.life = lifecycle.Life{Limits: lifecycle.LimitsOf(o.Config, !o.Client, o.CloseTimeout), Clock: lifecycle.System{}}
	return s
}

// Start starts the session. acceptor handles the peer's calls; if it is nil, they are refused.
func (s *Session) Start(acceptor link.Acceptor) {
	s.mu.Lock()
	s.acceptor = acceptor
	if !s.opts.Greeted {
		s.writing.control = append(s.opts.Greeting(acceptor != nil, 0, ""), s.writing.control...)
	}
	s.roles.Reader = waits.ReadLoop
	s.wakeWriterLocked() // to send HELLO
	s.performLocked(s.life.Start(acceptor != nil))
	ended := s.life.Reason()
	s.mu.Unlock()
	if ended != nil && acceptor != nil {
		acceptor.Closed(ended) // the session was closed before Start
	}
	s.loops.Go(s.writeLoop)
	s.loops.Add(1) // the last read loop calls Done
	go s.readLoop()
	go func() {
		s.loops.Wait()
		s.terminating.Wait()
		_ = s.conn.Close()
		s.mu.Lock()
		s.performLocked(s.life.Closes())
		if s.reading.idle != nil {
			s.reading.idle.Stop()
		}
		if s.written == nil {
			s.written = make(chan struct{}) // for Written, if it is called later
		}
		s.closeWrittenLocked()
		s.mu.Unlock()
		close(s.gone)
		if acceptor != nil {
			acceptor.Gone()
		}
	}()
}

// Meet waits for the peer's HELLO. It returns an error if the session ends first. If
// HELLO has arrived, it returns nil even if the session has ended since.
func (s *Session) Meet(ctx context.Context) error {
	select {
	case <-s.helloReceived:
		return nil
	case <-s.allCallsEnded:
		if link.IsClosed(s.helloReceived) {
			return nil
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.life.Reason()
	case <-ctx.Done():
		return fmt.Errorf("%s: the handshake is not complete: %w", s.opts.Name, ctx.Err())
	}
}

// Begin begins a session over conn as a client, and returns it once the server has sent its HELLO. If
// it fails, conn is closed. accept returns the acceptor of the server's calls, or nil for none; it may
// be nil, too.
func Begin(ctx context.Context, conn Conn, o Options, accept func(link.Session) link.Acceptor) (*Session, error) {
	s := New(conn, o)
	var acceptor link.Acceptor
	if accept != nil {
		acceptor = accept(s)
	}
	s.Start(acceptor)
	if err := s.Meet(ctx); err != nil {
		_ = s.Close(err)
		return nil, err
	}
	return s, nil
}

// Done implements [link.Session].
func (s *Session) Done() <-chan struct{} { return s.done }

// Ended implements [link.Session].
func (s *Session) Ended() <-chan struct{} { return s.allCallsEnded }

// Gone returns a channel that is closed when the connection is closed and no goroutine
// of the session runs any more.
func (s *Session) Gone() <-chan struct{} { return s.gone }

// Outcome reports why no new calls are made. It also reports whether the peer has sent a
// frame of an open call, made by either side.
func (s *Session) Outcome() (answered bool, reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answered, s.life.Refusal()
}

// Peer implements [link.Session].
func (s *Session) Peer() *link.Peer { return &s.opts.Peer }

// NewStream implements [link.Session]. It blocks only while the peer's limit of open
// calls is reached.
func (s *Session) NewStream(ctx context.Context, o *link.CallHeader) (link.Stream, error) {
	if err := link.ContextErr(ctx); err != nil {
		return nil, err
	}
	st := &stream{waiter: wait.TaskOf(ctx)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.openLocked(st, wire.Step{Open: o}, nil); err != nil {
		return nil, err
	}
	for st.held && st.reason == nil {
		if err := s.sleepLocked(ctx, st, &st.sender); err != nil {
			var after callbacks // stays empty: the stream has no other user
			st.abortLocked(link.ContextEnd(err), false, &after)
		}
	}
	if st.held {
		return nil, st.reason
	}
	s.wakeWriterLocked() // not flush: the first message usually follows, and goes out with it
	st.waiter = nil
	return st, nil
}

// openLocked makes st a new call of this side, whose first step is step. If the peer's limit of
// open calls is reached, the call is held. It fails if the session makes no new calls.
func (s *Session) openLocked(st *stream, step wire.Step, message *buffer) error {
	o := step.Open
	switch n := wire.HeadSize(o); {
	case n > s.hello.Block:
		return encoded.TooLong("request header", n, s.hello.Block)
	case s.life.Refusal() != nil:
		return link.Unprocessed{Err: s.life.Refusal(), Unsent: true}
	case s.hello.Features&wire.FeatureNoCalls != 0:
		return fmt.Errorf("%s: %w", s.opts.Name, link.ErrOneWay)
	}
	st.caller, st.deadline = true, o.Deadline
	s.initStreamLocked(st, 0, o.Encoding)
	if st.held = s.hello.Calls > 0 && s.ownCalls >= s.hello.Calls; !st.held {
		s.ownCalls++
	}
	st.enqueueLocked(step, message)
	return nil
}

// Invoke implements [link.Session].
func (s *Session) Invoke(ctx context.Context, c *link.UnaryCall) error {
	if err := link.ContextErr(ctx); err != nil {
		return err
	}
	step := wire.Step{Open: &c.CallHeader, HasMessage: true, HalfClose: true}
	message, err := s.encode(&step, c.Message(), c.Encoding)
	if err != nil {
		return err
	}
	st := streamPool.Get().(*stream)
	st.in.unary = true
	st.waiter = wait.TaskOf(ctx)
	s.mu.Lock()
	if err := s.openLocked(st, step, message); err != nil {
		s.unplace(&step)
		s.mu.Unlock()
		st.recycle()
		message.Free()
		return err
	}
	s.flushLocked(true)
	for !st.in.Replied(c.MaxReply) {
		if it := st.in.Last(); it != nil && it.Message && st.grantForMessageLocked(it) {
			s.flushLocked(false)
			continue
		}
		if err := s.awaitLocked(ctx, st, &st.in.receiver); err != nil {
			s.mu.Unlock()
			st.Abort(link.ContextEnd(err))
			s.mu.Lock()
		}
	}
	replies, wrong := st.in.Collect(c)
	st.in.dropPlacesLocked()
	st.ended = st.ended || wrong == nil
	s.mu.Unlock()
	err = st.finishCall(c, replies, wrong)
	st.recycle() // the call has ended, so the session holds no reference to st
	return err
}

// finishCall decodes the replies that Collect has returned. If Collect has found the call wrong,
// finishCall first aborts it.
func (st *stream) finishCall(c *link.UnaryCall, replies []item, wrong error) error {
	if wrong != nil {
		st.Abort(context.Canceled)
	}
	var lost error
	for i := range replies {
		if lost = fetch(&replies[i]); lost != nil {
			replies = replies[:i]
			break
		}
	}
	return st.in.DecodeReplies(c, replies, lost, wrong)
}

func (st *stream) Send(f *link.Frame) error {
	if sent := st.sendPlain(f); sent {
		return nil
	}
	s := st.session
	step := wire.Step{Header: f.Header, HalfClose: f.EndSend, End: f.End}
	if name, ok := encoded.EncodingOf(f.Header); ok { // no message is sent before the header
		st.sends = name
	}
	var message *buffer
	if f.HasMsg {
		var err error
		if message, err = s.encode(&step, &f.Msg, st.sends); err != nil {
			return err
		}
	}
	s.mu.Lock()
	if err := encoded.CheckBlocks(f, s.hello.Block); err != nil {
		var after callbacks
		st.abortLocked(err, true, &after) // the caller learns why
		s.unplace(&step)
		s.flushLocked(false)
		s.mu.Unlock()
		after.run()
		message.Free()
		return err
	}
	for f.HasMsg && st.sendErr == nil {
		if st.flow.Lacks() {
			_ = s.awaitLocked(context.Background(), st, &st.sender)
		} else if st.flow.Full(st.session.writing.backlog) {
			_ = s.sleepLocked(context.Background(), st, &st.sender) // until the writer has made room
		} else {
			break
		}
	}
	if err := st.sendErr; err != nil {
		s.unplace(&step)
		if f.End != nil { // no message will be received any more
			st.in.dropPlacesLocked()
		}
		s.flushLocked(false)
		s.mu.Unlock()
		message.Free()
		return err
	}
	large := st.waiter == nil && st.yielding.shouldYield(len(step.Message)+step.Size, s.streamsBegun)
	if !step.Done() {
		st.enqueueLocked(step, message)
	}
	if f.HasMsg {
		st.number = st.id
	}
	var after callbacks
	if f.End != nil {
		st.ended = true
		st.in.dropPlacesLocked()
		st.endBothLocked(link.ErrEnded, &after)
	}
	switch {
	case f.More:
	case st.answers || !f.HasMsg || f.End != nil || f.EndSend:
		st.answers = false
		s.flushLocked(true)
	default:
		s.wakeWriterLocked() // another message is likely to follow, and can be written together with this one
	}
	s.mu.Unlock()
	after.run()
	if large {
		giveWay()
	}
	return nil
}

// sendPlain sends a frame that has a small message and nothing else. It reports whether it did.
func (st *stream) sendPlain(f *link.Frame) (sent bool) {
	if st.number == 0 || !f.HasMsg || f.Header != nil || f.EndSend || f.End != nil || message.Compressor(st.sends) != "" {
		return false
	}
	scratch := newBuffer(maxPacked)
	defer scratch.Free() // deferred, because the codec may panic
	b := wire.BeginPlain(scratch.B, st.number)
	head := len(b)
	b, ok := f.Msg.AppendWithin(b)
	if !ok {
		return false
	}
	wire.EndPlain(b, 0)
	cost := len(b) - head + wire.MessageCost
	s := st.session
	s.mu.Lock()
	if st.sendErr != nil || st.reason != nil || st.flow.Full(st.session.writing.backlog) || st.flow.Credit-int64(st.flow.Backlog) < int64(cost) {
		s.mu.Unlock()
		return false
	}
	st.enqueuePlainLocked(b, cost)
	switch {
	case st.answers:
		st.answers = false
		s.flushLocked(true)
	case st.flow.Backlog >= enoughToWrite:
		s.flushLocked(false)
	default:
		s.wakeWriterLocked() // another message is likely to follow
	}
	s.mu.Unlock()
	return true
}

// encode makes m the message of step: serialized, and compressed with the compressor called name.
// Empty messages are not compressed. It returns the buffer with the bytes, or nil if they are in
// a place that the peer can read. The error is a *message.SendError.
func (s *Session) encode(step *wire.Step, m *message.Message, name string) (*buffer, error) {
	step.HasMessage = true
	name = message.Compressor(name)
	if b := encoded.Ready(m, name); b != nil {
		step.Message, step.Compressed = b.B, true
		return b, nil
	}
	if b := encoded.Small(m); b != nil {
		return pack(step, b, name)
	}
	sized, err := m.Sized()
	if err != nil {
		return nil, err
	}
	defer sized.Free()
	n := sized.Bound()
	places := s.placer != nil && name == ""
	if places && n >= minPlaced {
		if data := sized.Data(); len(data) == 1 {
			if step.Place, step.Placed = s.placer.PlaceOf(data[0].ReadOnlyData()); step.Placed {
				step.Size = n
				return nil, nil
			}
		}
		if b, err := s.encodeInPlace(step, &sized); b != nil || err != nil || step.Placed {
			return b, err
		}
	}
	b := newBuffer(n)
	if b.B, err = sized.Append(b.B); err != nil {
		return nil, err
	}
	if places && n == 0 && len(b.B) >= minPlaced { // the size was not known before encoding
		whole := message.EncodedBytes(b.B)
		if _, _ = s.encodeInPlace(step, &whole); step.Placed {
			b.Free()
			return nil, nil
		}
	}
	return pack(step, b, name)
}

// pack makes b the message of step, compressed with the compressor called name. It takes
// ownership of b, and returns the buffer with the bytes.
func pack(step *wire.Step, b *encoded.Buffer, name string) (_ *encoded.Buffer, err error) {
	b, step.Compressed, err = encoded.Compress(b, name)
	if err == nil {
		step.Message = b.B
	}
	return b, err
}

func (st *stream) Recv(f *link.Frame) error {
	f.Reset()
	if st.unpacked.pack != nil {
		if f.Dst == nil {
			return nil // the message stays for the next Recv
		}
		return st.receivePacked(f)
	}
	s, in := st.session, &st.in
	s.mu.Lock()
	st.answers = true
	for {
		it, done, err := in.Next(f)
		switch {
		case done:
			st.ended = st.ended || f.End != nil
			s.mu.Unlock()
			return err
		case it == nil:
		case it.Size > f.Limit: // as in gRPC, the limit applies to the compressed size, too
			refused := st.takeMessageLocked()
			refused.Data.Free()
			refused.Extra.place.dropLocked()
			s.flushLocked(false)
			s.mu.Unlock()
			return &message.RecvError{Size: refused.Size, Limit: f.Limit}
		case it.Missing == 0:
			taken := st.takeMessageLocked()
			encoding := in.Encoding
			large := st.waiter == nil && st.yielding.shouldYield(taken.Size, s.streamsBegun)
			if len(s.writing.control) > 0 && taken.Extra.place == nil { // otherwise fetch flushes control
				s.wakeWriterLocked()
			}
			s.mu.Unlock()
			if err := st.receiveMessage(f, &taken, encoding); err != nil {
				return err
			}
			if large {
				giveWay()
			}
			return nil
		case st.grantForMessageLocked(it):
			s.flushLocked(false)
			continue
		}
		_ = s.awaitLocked(context.Background(), st, &in.receiver)
	}
}

func (st *stream) Abort(reason error) {
	var after callbacks
	s := st.session
	s.mu.Lock()
	st.abortLocked(reason, s.life.Reason() == nil, &after) // once the session has ended, BYE tells the peer
	s.flushLocked(false)
	s.mu.Unlock()
	after.run()
}

// Abandoned implements [wait.Abandoned], for a task that waits for the peer.
func (st *stream) Abandoned() { st.Abort(context.Canceled) }

func (st *stream) OnAbort(f func(error)) {
	s := st.session
	s.mu.Lock()
	st.onAbort = f
	reason := st.reason
	s.mu.Unlock()
	if reason != nil {
		f(reason)
	}
}

func (st *stream) SetWaiter(w wait.Waiter) { st.waiter = w }
