package mux

import (
	"errors"
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

// A borrower is an Acceptor whose calls run on the goroutine that its session lends.
type borrower struct {
	witness
	session *Session
	run     func(s *Session, st link.Stream) // the handler
	lent    int                              // calls that ran on the goroutine that reads
	others  int                              // calls that were not lent it
}

func (b *borrower) HandleStream(s link.Stream, o *link.CallHeader) error {
	if err := b.witness.HandleStream(s, o); err != nil {
		return err
	}
	if l := s.(link.Lender); l.Lends(true) {
		l.Lend(runs(func() { b.lent++; b.run(b.session, s) }))
	} else {
		b.others++
	}
	return nil
}

type runs func()

func (f runs) Run() { f() }

// asked is a unary call in one frame.
func asked(id uint64, message ...byte) []byte {
	return literal(head|wire.FlagMessage|wire.FlagEnd, id, append(append([]byte(nil), opens...), message...)...)
}

// lends returns a server's session that lends its resident to b, and its peer, which has sent hello.
func lends(t *testing.T, b *borrower, hello []byte) (*Session, *raw) {
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
		b := &borrower{run: finishes}
		s, peer := lends(t, b, start())
		for id := uint64(1); id < 20; id += 2 {
			peer.write(asked(id, 1, 2, 3))
		}
		peer.answers(10)
		if b.lent != 10 {
			t.Errorf("%d of 10 calls run on the resident", b.lent)
		}
		empty(t, s)
	})
}

// The resident lends itself only if nothing else waits for it.
func TestTheResidentIsNotLent(t *testing.T) {
	for name, c := range map[string]struct {
		before, frames []byte
		id             uint64
	}{
		"while another call is open":             {before: opened(1), frames: asked(3), id: 3},
		"before the whole request has arrived":   {frames: opened(1), id: 1},
		"in the middle of a message":             {frames: literal(head|wire.FlagMessage|wire.FlagMore, 1, append(append([]byte(nil), opens...), 9, 1)...), id: 1},
		"to a call that another frame follows":   {frames: append(asked(1), ping()...), id: 1},
		"to a call with more input right behind": {frames: append(asked(1), 9), id: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &borrower{run: finishes}
				_, peer := lends(t, b, start())
				if c.before != nil {
					peer.write(c.before)
				}
				others := b.others
				peer.write(c.frames)
				if b.lent > 0 || b.others != others+1 {
					t.Errorf("%d calls run on the resident, %d elsewhere", b.lent, b.others-others)
				}
			})
		})
	}
}

func TestAReleasedResidentIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slow link.Stream
		leave := make(chan struct{})
		b := &borrower{run: func(s *Session, st link.Stream) {
			if slow != nil {
				finishes(s, st)
				return
			}
			slow = st
			<-leave
			finishes(s, st)
		}}
		s, peer := lends(t, b, start())
		peer.write(asked(1))
		go func() { _, _ = peer.conn.Write(ping()) }()
		synctest.Wait()
		if n := len(peer.of(wire.KindPong)); n > 0 {
			t.Error("somebody reads while the resident runs a handler")
		}
		slow.(link.Lender).Release()
		slow.(link.Lender).Release() // once is enough
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
		if b.lent != 3 {
			t.Errorf("%d of 3 calls run on a resident", b.lent)
		}
		slow.(link.Lender).Release() // too late to mean anything
		peer.write(asked(7))
		peer.answers(3)
		empty(t, s)
	})
}

// A handler that waits for what the peer sends gets it: credit, a slot and a reply.
func TestALentResidentIsReplacedWhenAGoroutineWaitsForThePeer(t *testing.T) {
	t.Run("for credit", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := &borrower{run: func(s *Session, st link.Stream) {
				for range 3 {
					_ = st.Send(&link.Frame{Msg: encoded(wire.MinWindow), HasMsg: true})
				}
				finishes(s, st)
			}}
			s, peer := lends(t, b, start())
			peer.write(asked(1))
			peer.answers(0)
			peer.write(wire.AppendCredit(nil, 0, 4*wire.MinWindow), wire.AppendCredit(nil, 1, 4*wire.MinWindow))
			peer.answers(1)
			empty(t, s)
		})
	})
	t.Run("for a reply", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := &borrower{run: func(s *Session, st link.Stream) {
				c, _ := unary("/back", 1, 10)
				if err := s.Invoke(t.Context(), c); err != nil || !c.Replied {
					t.Errorf("%v, replied: %v", err, c.Replied)
				}
				finishes(s, st)
			}}
			s, peer := lends(t, b, start())
			peer.write(asked(1))
			peer.write(whole(2, 5))
			peer.answers(1)
			empty(t, s)
		})
	})
	t.Run("for a slot", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := &borrower{run: func(s *Session, st link.Stream) {
				second, err := s.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}, Method: "/b"})
				if err != nil {
					t.Error(err)
					return
				}
				second.Abort(errors.New("enough"))
				finishes(s, st)
			}}
			s, peer := lends(t, b, limited(1))
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

// A session ends, and its goroutines, whatever the handler on its resident does.
func TestASessionEndsWhileItsResidentRunsAHandler(t *testing.T) {
	for name, end := range map[string]func(s *Session, peer *raw){
		"it is closed":        func(s *Session, _ *raw) { _ = s.Close(errors.New("enough")) },
		"a write fails":       func(s *Session, peer *raw) { _ = peer.conn.Close(); s.Drain() },
		"a handler closes it": nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				leave := make(chan struct{})
				b := &borrower{run: func(s *Session, st link.Stream) {
					if end == nil {
						_ = s.Close(errors.New("enough"))
						<-s.Ended()
					}
					<-leave
					finishes(s, st)
				}}
				s, peer := lends(t, b, start())
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
		b := &borrower{run: func(s *Session, st link.Stream) {
			finishes(s, st)
			if exits {
				exits = false
				runtime.Goexit()
			}
		}}
		s, peer := lends(t, b, start())
		peer.write(asked(1))
		peer.write(asked(3))
		peer.answers(2)
		empty(t, s)
	})
}
