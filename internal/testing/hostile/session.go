package hostile

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
)

// A session is one side's end of a session. One lock guards it and all of its streams. It
// is not held while code outside this package is called.
type session struct {
	name          string
	pipe          *pipe
	peer          link.Peer
	acceptor      link.Acceptor // on the server's side; set before the first read
	done          chan struct{} // closed when no new calls are accepted
	allCallsEnded chan struct{} // closed when all calls have ended
	terminating   sync.WaitGroup

	mu       sync.Mutex
	rand     *rand.Rand
	refusal  error // why no new call is made or accepted; nil while calls are
	ended    error // why the session has ended; nil while it has not
	accepted bool  // acceptor is set, and must be told of the end
	streams  map[uint64]*stream
	live     map[*stream]struct{} // the streams in streams, and those whose open is not written yet
	last     uint64               // the last stream number that was given, or seen

	// State for the writer.
	drain   bool      // write DRAIN before anything else
	control []frame   // frames to write in order, independent of streams
	ready   []*stream // streams with items in out, each once
	bye     bool      // write BYE after everything else, then close the pipe
	saidBye bool
	broken  bool // write nothing more
	writer  wait.Cond
}

func newSession(name string, p *pipe) *session {
	return &session{
		name: name,
		pipe: p,
		peer: link.Peer{
			Addr:      Addr(name),
			LocalAddr: Addr(name),
			AuthInfo:  link.Private,
		},
		done:          make(chan struct{}),
		allCallsEnded: make(chan struct{}),
		rand:          rand.New(rand.NewPCG(p.opts.Seed, p.readRand.Uint64())),
		streams:       make(map[uint64]*stream),
		live:          make(map[*stream]struct{}),
	}
}

// start starts the session's goroutines. acceptor is nil on the client's side.
func (s *session) start(acceptor link.Acceptor) {
	s.mu.Lock()
	s.acceptor = acceptor
	s.accepted = true
	ended := s.ended
	s.mu.Unlock()
	if ended != nil && acceptor != nil {
		acceptor.Closed(ended) // the server closed the session before it was accepted
	}
	var both sync.WaitGroup
	both.Go(s.writeAll)
	both.Go(s.readAll)
	go func() {
		both.Wait()
		s.terminating.Wait()
		if acceptor != nil {
			acceptor.Gone()
		}
	}()
}

// Invoke implements [link.Session]. It always refuses, so that unary calls use NewStream.
func (s *session) Invoke(context.Context, *link.UnaryCall) error { return link.ErrNoCall }

// NewStream implements [link.Session]. It does not wait for the peer.
func (s *session) NewStream(ctx context.Context, o *link.CallHeader) (link.Stream, error) {
	if err := link.ContextErr(ctx); err != nil {
		return nil, err
	}
	if s.acceptor != nil {
		return nil, fmt.Errorf("hostile: %w", link.ErrOneWay)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refusal != nil {
		return nil, link.Unprocessed{Err: s.refusal, Unsent: true}
	}
	st := &stream{session: s, caller: true, deadline: o.Deadline}
	s.live[st] = struct{}{}
	st.put(item{kind: kindOpen, open: o})
	wait.Unpark(s.writer.Wake())
	return st, nil
}

// Drain implements [link.Session].
func (s *session) Drain() <-chan struct{} {
	s.mu.Lock()
	if s.refuse(errors.New("the server is going away")) {
		s.drain = true
	}
	p := s.writer.Wake()
	s.mu.Unlock()
	wait.Unpark(p)
	return s.done
}

// Retire implements [link.Session].
func (s *session) Retire() { s.Drain() }

// Written implements [link.Session]. It is not used: this transport's clients take no calls.
func (s *session) Written() <-chan struct{} { return s.allCallsEnded }

// refuse makes the session refuse new calls, with reason. It reports whether it is the
// first call. The caller holds mu.
func (s *session) refuse(reason error) bool {
	if s.refusal != nil {
		return false
	}
	s.refusal = reason
	close(s.done)
	return true
}

// Done implements [link.Session].
func (s *session) Done() <-chan struct{} { return s.done }

// Ended implements [link.Session].
func (s *session) Ended() <-chan struct{} { return s.allCallsEnded }

// Peer implements [link.Session].
func (s *session) Peer() *link.Peer { return &s.peer }

// Close implements [link.Session]. What is still queued for calls that have ended is
// written first, in the background.
func (s *session) Close(reason error) error {
	s.terminate(reason, false)
	return nil
}

// fail ends a session whose pipe broke or whose peer broke a rule.
func (s *session) fail(reason error) {
	s.terminate(fmt.Errorf("hostile:%s: %w", s.name, reason), true)
}

// terminate ends the session and all its calls with reason. broken means that nothing more
// can be written.
func (s *session) terminate(reason error, broken bool) {
	s.pipe.stopPausing()
	s.mu.Lock()
	if broken {
		s.broken = true
		s.pipe.close()
	}
	if s.ended != nil {
		p := s.writer.Wake()
		s.mu.Unlock()
		wait.Unpark(p)
		return
	}
	s.ended = reason
	s.terminating.Add(1)
	defer s.terminating.Done()
	s.bye = true
	s.refuse(reason)
	var after callbacks
	for st := range s.live {
		why := reason
		if broken && st.caller && st.id == 0 {
			why = link.Unprocessed{Err: reason, Unsent: true}
		}
		st.abort(why, false, &after)
	}
	after.unpark(&s.writer)
	told := s.accepted && s.acceptor != nil
	s.mu.Unlock()
	after.run()
	close(s.allCallsEnded)
	if told {
		s.acceptor.Closed(reason)
	}
}

// callbacks collect what must be called after the lock is released.
type callbacks struct {
	first   []func() // tell callees of an abort, before it unblocks them
	parkers []wait.Parker
	last    []func() // tell callers of an abort, after it unblocked them
}

// unpark adds the waiter of spot, if there is one.
func (c *callbacks) unpark(spot *wait.Cond) {
	if p := spot.Wake(); p != nil {
		c.parkers = append(c.parkers, p)
	}
}

func (c *callbacks) run() {
	for _, f := range c.first {
		f()
	}
	for _, p := range c.parkers {
		p.Unpark()
	}
	for _, f := range c.last {
		f()
	}
}

// readAll reads and processes frames until the pipe breaks.
func (s *session) readAll() {
	var buf []byte
	for {
		var f frame
		var err error
		if f, buf, err = s.pipe.read(buf); err == nil {
			err = s.handleFrame(&f)
		}
		if err != nil {
			s.fail(err)
			return
		}
	}
}

// handleFrame processes a frame. An error ends the session.
func (s *session) handleFrame(f *frame) error {
	if f.kind == kindOpen {
		return s.handleOpen(f)
	}
	var after callbacks
	s.mu.Lock()
	err := s.handleFrameLocked(f, &after)
	s.mu.Unlock()
	after.run()
	return err
}

func (s *session) handleFrameLocked(f *frame, after *callbacks) error {
	if s.ended != nil {
		return nil // all calls have ended
	}
	switch f.kind {
	case kindDrain:
		s.refuse(errors.New("the peer is going away"))
		return nil
	case kindBye:
		return s.handleBye(f.n, after)
	}
	if f.id > s.last {
		return fmt.Errorf("the peer speaks of stream %d, which was not opened", f.id)
	}
	st := s.streams[f.id]
	if st == nil {
		return nil // it has ended here, which the peer did not know yet
	}
	return st.handleFrame(f, after)
}

// handleBye ends the streams that the peer has not seen. The others end when the pipe
// breaks.
func (s *session) handleBye(last uint64, after *callbacks) error {
	if last > s.last {
		return fmt.Errorf("the peer has seen stream %d, which was not opened", last)
	}
	gone := fmt.Errorf("hostile:%s: %w", s.name, errHangUp)
	s.refuse(gone)
	for st := range s.live {
		if st.caller && (st.id == 0 || st.id > last) {
			st.abort(link.Unprocessed{Err: gone, Unsent: st.id == 0}, false, after)
		}
	}
	return nil
}

// handleOpen gives a new stream to the acceptor.
func (s *session) handleOpen(f *frame) error {
	if s.acceptor == nil {
		return errors.New("the server opens a stream")
	}
	s.mu.Lock()
	if s.ended != nil {
		s.mu.Unlock()
		return nil
	}
	if f.id != s.last+1 {
		s.mu.Unlock()
		return fmt.Errorf("the peer opens stream %d after %d", f.id, s.last)
	}
	s.last = f.id
	st := &stream{session: s, id: f.id}
	s.streams[f.id] = st
	s.live[st] = struct{}{}
	refusal := s.refusal
	s.mu.Unlock()
	if refusal != nil {
		st.Abort(link.Unprocessed{Err: refusal})
	} else if err := s.acceptor.HandleStream(st, f.opened(time.Now())); err != nil {
		st.Abort(err)
	}
	return nil
}
