package mux

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/testing/transporttest"
	"github.com/nearcall/nearcall/internal/wire"
)

// goneFor returns how often Gone was called.
func (w *witness) goneFor() int {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.gone
}

// A session closes its connection only after the peer has read everything and closed
// its own end. Until then input is read, because closing a connection with unread input
// may reset it.
func TestTheConnectionIsOpenUntilThePeerHasReadItsEnd(t *testing.T) {
	for name, end := range map[string]func(*raw){
		"the peer closes": func(peer *raw) { _ = peer.conn.Close() },
		"the peer says bye": func(peer *raw) {
			peer.write(wire.AppendBye(nil, wire.ByeDone, ""))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &witness{}
				s, peer := met(t, Options{}, w) // over a connection without CloseWrite
				peer.write(opened(1))
				if err := w.first(t).Send(&link.Frame{Msg: ofBytes(1000), HasMsg: true, End: &link.End{}}); err != nil {
					t.Fatal(err)
				}
				_ = s.Close(errors.New("stopping"))
				time.Sleep(time.Second)
				if len(peer.of(wire.KindBye)) != 1 || w.goneFor() > 0 || link.IsClosed(s.Gone()) {
					t.Fatalf("the peer gets %v, and it is gone: %t", peer.frames(), link.IsClosed(s.Gone()))
				}
				if _, err := peer.conn.Write(opened(3)); err != nil { // the peer has not read BYE yet
					t.Errorf("what the peer says is not read: %v", err)
				}
				began := time.Now()
				end(peer)
				<-s.Gone()
				if took := time.Since(began); took > 0 || w.goneFor() != 1 {
					t.Errorf("%v later the acceptor was told %d times", took, w.goneFor())
				}
			})
		})
	}
}

// BYE comes after the replies that are left, for which the peer may have no credit yet. The caller
// of a call that was cut off is told before that.
func TestWhoIsCutOffDoesNotWaitForRepliesOfOthers(t *testing.T) {
	for name, test := range map[string]struct {
		reply        int // bytes of the other call's
		resets, byes int
	}{
		"a reply is left": {reply: 2 * wire.MinWindow, resets: 1},
		"none is left":    {reply: 1, byes: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &witness{}
				s, peer := met(t, Options{}, w)
				peer.write(opened(1), opened(3))
				if err := w.first(t).Send(&link.Frame{Msg: ofBytes(test.reply), HasMsg: true, End: &link.End{}}); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				_ = s.Close(errors.New("stopping"))
				resets := peer.of(wire.KindReset)
				if len(resets) != test.resets || len(peer.of(wire.KindBye)) != test.byes {
					t.Errorf("at once the peer gets %d RESET and %d BYE", len(resets), len(peer.of(wire.KindBye)))
				}
				for _, f := range resets {
					if code, text, err := wire.ParseReset(f.Body); err != nil || f.Stream != 3 || code != wire.ResetUnavailable || text != "stopping" {
						t.Errorf("call %d is reset with code %d: %s", f.Stream, code, text)
					}
				}
			})
		})
	}
}

// A session gives up a peer that reads nothing for CloseTimeout, whatever else the peer
// does. A peer that keeps reading what ended calls have left gets all of it.
func TestClosingWaitsForAsLongAsThePeerTakesSomething(t *testing.T) {
	const closeTimeout, pieces = 5 * time.Second, 6
	for name, test := range map[string]struct {
		deaf bool            // the peer does not read
		do   func(peer *raw) // every four seconds
		want time.Duration   // until the session is gone
		got  int             // BYEs that arrive
	}{
		"it reads nothing": {true, func(*raw) {}, closeTimeout, 0},
		"it wants no more": {false, func(*raw) {}, closeTimeout, 0},
		"it only pings":    {false, func(peer *raw) { peer.write(wire.AppendPing(nil, wire.KindPing, [8]byte{})) }, closeTimeout, 0},
		"it takes a piece": {false, func(peer *raw) {
			b := wire.AppendCredit(nil, 1, wire.MinWindow)
			peer.write(wire.AppendCredit(b, 0, wire.MinWindow))
		}, (pieces-1)*4*time.Second + closeTimeout, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &witness{}
				s, peer := lone(t, Options{}, w, test.deaf)
				peer.write(start())
				if !test.deaf {
					peer.write(opened(1))
					if err := w.first(t).Send(&link.Frame{Msg: ofBytes(pieces*wire.MinWindow - 100), HasMsg: true, End: &link.End{}}); err != nil {
						t.Fatal(err)
					}
				}
				began := time.Now()
				_ = s.Close(errors.New("stopping"))
				for !link.IsClosed(s.Gone()) && time.Since(began) < time.Minute {
					select {
					case <-s.Gone():
					case <-time.After(4 * time.Second):
						test.do(peer)
					}
				}
				if took := time.Since(began); took != test.want || w.goneFor() != 1 {
					t.Errorf("it takes %v, want %v; the acceptor was told %d times", took, test.want, w.goneFor())
				}
				if !test.deaf && len(peer.of(wire.KindBye)) != test.got {
					t.Errorf("the peer gets %v", peer.of(wire.KindBye))
				}
			})
		})
	}
}

// Meet succeeds if HELLO has arrived, however soon the peer leaves.
func TestAPeerThatSaidHelloAndLeftWasMet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cs, ss := pair(t, Options{}, Options{}, make(transporttest.Accepter, 1))
		_ = ss.Close(errors.New("not today"))
		<-cs.Gone()
		for range 100 {
			if err := cs.Meet(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// When the session is gone, nothing is left to write, even if the connection broke before
// all was written. Who asks for the first time then does not wait.
func TestNothingIsLeftToWriteWhenTheSessionIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, peer := met(t, Options{}, &witness{})
		_ = peer.conn.Close() // no DRAIN or BYE can be written
		<-s.Gone()
		if !link.IsClosed(s.Written()) {
			t.Error("something is left to write")
		}
	})
}

// A call whose reply the peer does not want any more is nothing left to write.
func TestNothingIsLeftToWriteOfACallThatThePeerResets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		s, peer := met(t, Options{}, w)
		peer.write(opened(1))
		if err := w.first(t).Send(&link.Frame{Msg: ofBytes(2 * wire.MinWindow), HasMsg: true, End: &link.End{}}); err != nil {
			t.Fatal(err)
		}
		s.Drain()
		written := s.Written()
		synctest.Wait()
		if link.IsClosed(written) {
			t.Fatal("the peer has not received the reply")
		}
		began := time.Now()
		peer.write(wire.AppendReset(nil, 1, wire.ResetCancelled, ""))
		<-written
		if took := time.Since(began); took > 0 {
			t.Errorf("it takes %v", took)
		}
	})
}

// Calls that arrive together with BYE, or with an error, reach no handler, and the session keeps
// nothing of them: their messages may be in shared memory, which would stay in use.
func TestCallsBesideTheEndAreForgotten(t *testing.T) {
	for name, end := range map[string][]byte{"bye": wire.AppendBye(nil, wire.ByeClosed, ""), "an error": opened(1)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &witness{}
				s, peer := met(t, Options{}, w)
				peer.write(opened(1), opened(3), end)
				_ = peer.conn.Close()
				<-s.Gone()
				if len(w.streams) > 0 {
					t.Errorf("%d calls reach the acceptor", len(w.streams))
				}
				if n := len(s.reading.newCalls); n > 0 {
					t.Errorf("%d calls are kept", n)
				}
				empty(t, s)
			})
		})
	}
}
