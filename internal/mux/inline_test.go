package mux

import (
	"errors"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

// An inlineAcceptor is an Acceptor whose calls run on its session's read loop.
type inlineAcceptor struct {
	witness
	session *Session
	run     func(s *Session, st link.Stream) // the handler
	takes   time.Duration                    // what the handler is expected to take
	inline  atomic.Int32                     // calls that ran on the goroutine that reads
	others  int                              // calls that ran elsewhere
}

func (b *inlineAcceptor) HandleStream(s link.Stream, o *link.CallHeader) error {
	if err := b.witness.HandleStream(s, o); err != nil {
		return err
	}
	if l := s.(link.InlineStream); l.MayRunInline(b.takes) {
		l.RunInline(runs(func() { b.inline.Add(1); b.run(b.session, s) }), b.takes)
	} else {
		b.others++
	}
	return nil
}

type runs func()

func (f runs) Run() time.Duration {
	begun := time.Now()
	f()
	return time.Since(begun)
}

// asked is a unary call in one frame.
func asked(id uint64, message ...byte) []byte {
	return frameOf(head|wire.FlagMessage|wire.FlagEnd, id, append(slices.Clone(opens), message...)...)
}

// servesInline returns a server's session that runs b's handlers inline, and its peer, which has
// sent hello.
func servesInline(t *testing.T, b *inlineAcceptor, hello []byte) (*Session, *raw) {
	s, peer := loneWith(t, Options{}, b, false)
	b.session = s
	peer.write(hello)
	return s, peer
}

// finishes is a handler that ends its call at once.
func finishes(_ *Session, s link.Stream) { _ = s.Send(&link.Frame{End: &link.End{}}) }

// ping returns a PING.
func ping() []byte { return wire.AppendPing(nil, wire.KindPing, [8]byte{7}) }

// answers checks how many calls of the peer were answered.
func (r *raw) answers(want int) {
	r.Helper()
	n := 0
	for _, f := range r.of(wire.KindStream) {
		if f.Kind&wire.FlagEnd != 0 && f.Stream%2 == 1 {
			n++
		}
	}
	if n != want {
		r.Errorf("%d calls are answered, want %d", n, want)
	}
}

func TestTheResidentRunsAHandlerAndReadsOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &inlineAcceptor{run: finishes}
		s, peer := servesInline(t, b, start())
		for id := uint64(1); id < 20; id += 2 {
			peer.write(asked(id, 1, 2, 3))
		}
		peer.answers(10)
		if b.inline.Load() != 10 {
			t.Errorf("%d of 10 calls run on the read loop", b.inline.Load())
		}
		empty(t, s)
	})
}

// The read loop runs only quick handlers of calls whose requests have arrived, to
// the quickest while other calls are open, and not for long.
func TestHandlersThatDoNotRunOnTheReadLoop(t *testing.T) {
	part := literal(head|wire.FlagMessage|wire.FlagMore, 1, append(slices.Clone(opens), 9, 1)...)
	alone, among := maxInline, maxInlineAmongMany
	for name, c := range map[string]struct {
		before, frames []byte
		takes          time.Duration
		inline, others int
	}{
		"to a handler that takes long":               {frames: asked(1), takes: alone + 1, others: 1},
		"before the whole request has arrived":       {frames: opened(1), others: 1},
		"in the middle of a message":                 {frames: part, others: 1},
		"to a slower one while another call is open": {before: opened(1), frames: asked(3), takes: among + 1, others: 1},
		"but to a quick one":                         {before: opened(1), frames: asked(3), takes: among, inline: 1},
		"to a slower one if another call follows":    {frames: append(asked(1), asked(3)...), takes: among + 1, others: 2},
		"to more handlers than it has time for":      {frames: askedTimes(20), takes: among, inline: int(alone / among), others: 20 - int(alone/among)},
		"among very many calls":                      {before: manyOpened(maxInlineAmong), frames: asked(2*maxInlineAmong + 1), others: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &inlineAcceptor{run: finishes, takes: c.takes}
				_, peer := servesInline(t, b, start())
				if c.before != nil {
					peer.write(c.before)
				}
				others := b.others
				peer.write(c.frames)
				if int(b.inline.Load()) != c.inline || b.others-others != c.others {
					t.Errorf("%d calls run on the read loop, %d elsewhere; want %d and %d", b.inline.Load(), b.others-others, c.inline, c.others)
				}
			})
		})
	}
}

// askedTimes returns n unary calls.
func askedTimes(n int) (b []byte) {
	for i := range uint64(n) {
		b = append(b, asked(1+2*i)...)
	}
	return b
}

// manyOpened returns n calls whose requests have not arrived.
func manyOpened(n int) (b []byte) {
	for i := range uint64(n) {
		b = append(b, frameOf(head, 1+2*i, opens...)...)
	}
	return b
}

// Replies of handlers that run one after another are written together, and before long.
func TestRepliesOfInlineHandlersAreWrittenTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls = 2*maxBatched + 5
		var waiting []int // replies in the queue when each handler began
		b := &inlineAcceptor{run: func(session *Session, st link.Stream) {
			session.mu.Lock()
			n := 0
			for q := session.writing.ready.first; q != nil; q = q.next {
				n++
			}
			session.mu.Unlock()
			waiting = append(waiting, n)
			finishes(session, st)
		}}
		s, peer := servesInline(t, b, start())
		peer.write(askedTimes(calls))
		peer.answers(calls)
		for i, n := range waiting {
			if i < maxBatched && n != i { // the writer may take those that follow at any time
				t.Errorf("%d replies wait when handler %d begins", n, i)
			}
		}
		if b.inline.Load() != calls {
			t.Errorf("%d of %d calls run on the read loop", b.inline.Load(), calls)
		}
		empty(t, s)
	})
}

// The calls behind one that blocks are run by the new read loop.
func TestCallsBehindABlockedHandlerRunOnTheNextResident(t *testing.T) {
	for name, unblock := range map[string]func(s *Session, st link.Stream, leave chan struct{}){
		"it is released": func(_ *Session, st link.Stream, leave chan struct{}) {
			st.(link.InlineStream).Release()
			<-leave
		},
		"it waits for the peer": func(_ *Session, st link.Stream, _ chan struct{}) {
			for range 2 {
				_ = st.Send(&link.Frame{Msg: ofBytes(wire.MinWindow), HasMsg: true})
			}
		},
		"the session ends": func(s *Session, _ link.Stream, leave chan struct{}) {
			_ = s.Close(errors.New("enough"))
			<-leave
		},
		"it exits":      func(*Session, link.Stream, chan struct{}) { runtime.Goexit() },
		"it takes long": func(*Session, link.Stream, chan struct{}) { time.Sleep(2 * maxInline) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const calls = 5
				leave := make(chan struct{})
				var ran atomic.Int32
				b := &inlineAcceptor{run: func(s *Session, st link.Stream) {
					if ran.Add(1) == 2 {
						unblock(s, st, leave)
					}
					finishes(s, st)
				}}
				s, peer := servesInline(t, b, start())
				go func() { _, _ = peer.conn.Write(askedTimes(calls)) }()
				synctest.Wait()
				time.Sleep(time.Second)
				if n := ran.Load(); n != calls {
					t.Errorf("%d of %d handlers run while one blocks", n, calls)
				}
				close(leave)
				if name != "the session ends" {
					time.Sleep(time.Second)
					_ = s.Close(errors.New("enough"))
				}
				_ = peer.conn.Close()
				<-s.Gone()
			})
		})
	}
}

func TestAReleasedResidentIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slow link.Stream
		leave := make(chan struct{})
		b := &inlineAcceptor{run: func(s *Session, st link.Stream) {
			if slow != nil {
				finishes(s, st)
				return
			}
			slow = st
			<-leave
			finishes(s, st)
		}}
		s, peer := servesInline(t, b, start())
		peer.write(asked(1))
		go func() { _, _ = peer.conn.Write(ping()) }()
		synctest.Wait()
		if n := len(peer.of(wire.KindPong)); n > 0 {
			t.Error("somebody reads while the read loop runs a handler")
		}
		slow.(link.InlineStream).Release()
		slow.(link.InlineStream).Release() // once is enough
		if n := len(peer.of(wire.KindPong)); n != 1 {
			t.Errorf("after Release a PING is answered %d times", n)
		}
		peer.write(wire.AppendReset(nil, 1, wire.ResetCancelled, ""))
		if len(b.aborts) != 1 {
			t.Error("the handler does not learn that its call was reset")
		}
		peer.write(asked(3))
		close(leave)
		peer.write(asked(5))
		peer.answers(2)
		if b.inline.Load() != 3 {
			t.Errorf("%d of 3 calls run on a read loop", b.inline.Load())
		}
		slow.(link.InlineStream).Release() // too late to mean anything
		peer.write(asked(7))
		peer.answers(3)
		empty(t, s)
	})
}

// A handler that waits for what the peer sends gets it: credit, a slot and a reply.
func TestReadLoopIsReplacedByWaiter(t *testing.T) {
	t.Run("for credit", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := &inlineAcceptor{run: func(s *Session, st link.Stream) {
				for range 3 {
					_ = st.Send(&link.Frame{Msg: ofBytes(wire.MinWindow), HasMsg: true})
				}
				finishes(s, st)
			}}
			s, peer := servesInline(t, b, start())
			peer.write(asked(1))
			peer.answers(0)
			peer.write(wire.AppendCredit(nil, 0, 4*wire.MinWindow), wire.AppendCredit(nil, 1, 4*wire.MinWindow))
			peer.answers(1)
			empty(t, s)
		})
	})
	t.Run("for a reply", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := &inlineAcceptor{run: func(s *Session, st link.Stream) {
				c, _ := unary("/back", 1, 10)
				if err := s.Invoke(t.Context(), c); err != nil || !c.Replied {
					t.Errorf("%v, replied: %v", err, c.Replied)
				}
				finishes(s, st)
			}}
			s, peer := servesInline(t, b, start())
			peer.write(asked(1))
			peer.write(whole(2, 5))
			peer.answers(1)
			empty(t, s)
		})
	})
	t.Run("for a slot", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := &inlineAcceptor{run: func(s *Session, st link.Stream) {
				second, err := s.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}, Method: "/b"})
				if err != nil {
					t.Error(err)
					return
				}
				second.Abort(errors.New("enough"))
				finishes(s, st)
			}}
			s, peer := servesInline(t, b, limited(1))
			first, err := s.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}, Method: "/a"})
			if err != nil {
				t.Fatal(err)
			}
			peer.write(asked(1))
			peer.answers(0)
			peer.write(whole(2, 5))
			first.Abort(errors.New("enough"))
			peer.answers(1)
		})
	})
}

// A session ends, and its goroutines, whatever the handler on its read loop does.
func TestASessionEndsWhileItsResidentRunsAHandler(t *testing.T) {
	for name, end := range map[string]func(s *Session, peer *raw){
		"it is closed":        func(s *Session, _ *raw) { _ = s.Close(errors.New("enough")) },
		"a write fails":       func(s *Session, peer *raw) { _ = peer.conn.Close(); s.Drain() },
		"a handler closes it": nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				leave := make(chan struct{})
				b := &inlineAcceptor{run: func(s *Session, st link.Stream) {
					if end == nil {
						_ = s.Close(errors.New("enough"))
						<-s.Ended()
					}
					<-leave
					finishes(s, st)
				}}
				s, peer := servesInline(t, b, start())
				peer.write(asked(1))
				if end != nil {
					end(s, peer)
				}
				_ = peer.conn.Close()
				<-s.Gone()
				if len(b.aborts) != 1 || len(b.told()) != 1 {
					t.Errorf("%d calls are aborted, Closed is called %d times", len(b.aborts), len(b.told()))
				}
				close(leave)
			})
		})
	}
}

func TestAHandlerThatExitsItsGoroutineTakesNoReaderAlong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		exits := true
		b := &inlineAcceptor{run: func(s *Session, st link.Stream) {
			finishes(s, st)
			if exits {
				exits = false
				runtime.Goexit()
			}
		}}
		s, peer := servesInline(t, b, start())
		peer.write(asked(1))
		peer.write(asked(3))
		peer.answers(2)
		empty(t, s)
	})
}

// A reply whose end follows at once leaves in one frame with it, from whichever goroutine.
func TestAReplyAndTheEndThatFollowsAreOneFrame(t *testing.T) {
	for name, where := range map[string]time.Duration{"on the read loop": 0, "on a goroutine": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := new(witness)
				b := &inlineAcceptor{takes: where, run: func(_ *Session, s link.Stream) { replies(s) }}
				var acceptor link.Acceptor = b
				if where > 0 {
					acceptor = w
				}
				s, peer := loneWith(t, Options{}, acceptor, false)
				b.session = s
				peer.write(start())
				peer.write(asked(1))
				synctest.Wait()
				if where > 0 {
					replies(w.streams[0])
				}
				time.Sleep(time.Millisecond)
				frames := peer.of(wire.KindStream)
				if len(frames) != 1 || frames[0].Kind&(wire.FlagMessage|wire.FlagEnd) != wire.FlagMessage|wire.FlagEnd {
					t.Errorf("the peer gets %d frames: %v", len(frames), frames)
				}
				empty(t, s)
			})
		})
	}
}

func replies(s link.Stream) {
	_ = s.Send(&link.Frame{Header: metadata.MD{}, Msg: ofBytes(3), HasMsg: true, More: true})
	time.Sleep(time.Microsecond) // the writer could write what it was told of
	_ = s.Send(&link.Frame{End: &link.End{}})
}
