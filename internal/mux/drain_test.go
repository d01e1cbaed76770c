package mux

import (
	"encoding/binary"
	"errors"
	"net"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/keepalive"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/lifecycle"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/testing/needs"
	"github.com/nearcall/nearcall/internal/testing/transporttest"
	"github.com/nearcall/nearcall/internal/wire"
)

// announced is what a side that drains sends first, apart from the PING.
var announced = wire.AppendDrain(nil, wire.NoLast)

// drains returns what the DRAINs say that a peer has received.
func drains(peer *raw) (last []uint64) {
	peer.Helper()
	for _, f := range peer.of(wire.KindDrain) {
		n, err := wire.ParseDrain(f.Body)
		if err != nil {
			peer.Error(err)
		}
		last = append(last, n)
	}
	return last
}

// pong returns the answer to the last PING that the peer has received.
func pong(peer *raw) []byte {
	peer.Helper()
	all := peer.of(wire.KindPing)
	if len(all) == 0 {
		peer.Fatal("no PING has come")
	}
	data, _ := wire.ParsePing(all[len(all)-1].Body)
	return wire.AppendPing(nil, wire.KindPong, data)
}

// A lateAcceptor notes whether a call comes after the drain has ended.
type lateAcceptor struct {
	accepter
	drained <-chan struct{}
	late    []bool
}

func (a *lateAcceptor) HandleStream(link.Stream, *link.CallHeader) error {
	a.late = append(a.late, link.IsClosed(a.drained))
	return nil
}

// A call that arrives in one read with the peer's answer reaches the acceptor before the drain ends:
// after that a server refuses calls.
func TestACallReachesTheAcceptorBeforeTheDrainEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &lateAcceptor{}
		s, peer := loneWith(t, Options{}, a, false)
		peer.write(start())
		a.drained = s.Drain()
		synctest.Wait()
		peer.write(opened(1), pong(peer))
		if synctest.Wait(); !slices.Equal(a.late, []bool{false}) || !link.IsClosed(a.drained) {
			t.Errorf("calls came after the end of the drain: %v", a.late)
		}
		peer.write(wire.AppendReset(nil, 1, wire.ResetCancelled, ""))
		synctest.Wait()
		empty(t, s)
	})
}

// A call that the peer opens is accepted before and after the drain is announced, and
// ignored only after the peer's answer. Then the second DRAIN names the call before it.
func TestACallIsAcceptedUntilThePeerAnswersADrain(t *testing.T) {
	begin := map[string]func(*Session){
		"Drain":  func(s *Session) { s.Drain() },
		"Retire": func(s *Session) { s.Retire() },
		"age": func(s *Session) {
			for holds(s, func() bool { return s.life.Drain() == lifecycle.Accepting }) {
				pass(time.Second)
			}
		},
	}
	for name, drain := range begin {
		for _, client := range []bool{false, true} {
			for _, order := range [][]string{
				{"call", "drain", "answer"},
				{"drain", "call", "answer"},
				{"drain", "answer", "call"},
				{"call", "drain", "call", "answer", "call"},
				{"drain", "call", "call", "drain", "answer", "call", "drain"},
			} {
				if client && name == "age" {
					continue
				}
				synctest.Test(t, func(t *testing.T) {
					w := &witness{}
					s, peer := met(t, Options{Client: client, Config: configured(client, func(c *options.Connections) {
						c.Given.Server.MaxConnectionAge = time.Hour
					})}, w)
					peer.write(opened(first(client))) // else a session that leaves ends after the answer
					synctest.Wait()
					id, last, taken, answered := first(client), first(client), 1, false
					for _, step := range order {
						switch step {
						case "drain":
							drain(s)
						case "answer":
							peer.write(pong(peer))
							answered = true
						case "call":
							id += 2
							peer.write(opened(id), literal(msg, id, 1))
							if !answered {
								last, taken = id, taken+1
							}
						}
						synctest.Wait()
					}
					if len(w.streams) != taken || len(w.aborts) > 0 || len(w.closed) > 0 {
						t.Errorf("%s: %v: %d of %d calls are accepted; aborted: %v, closed: %v", name, order, len(w.streams), taken, w.aborts, w.closed)
					}
					if got, want := drains(peer), []uint64{wire.NoLast, last}; !slices.Equal(got, want) {
						t.Errorf("%s: %v: DRAIN says %v, want %v", name, order, got, want)
					}
					if n := len(peer.of(wire.KindReset)); n > 0 {
						t.Errorf("%s: %v: %d calls are reset", name, order, n)
					}
				})
			}
		}
	}
}

// first returns the number of the first call of a session's peer.
func first(client bool) uint64 {
	if client {
		return 2
	}
	return 1
}

func literalPong(n uint64) []byte {
	var data [8]byte
	binary.LittleEndian.PutUint64(data[:], n)
	return wire.AppendPing(nil, wire.KindPong, data)
}

// A peer that does not answer a drain is refused after some seconds if it has no call open,
// and after a minute if it has. An answer to another PING is none.
func TestAPeerThatDoesNotAnswerADrain(t *testing.T) {
	for name, c := range map[string]struct {
		open, ends bool // a call is open, and ends after 12 s
		after      time.Duration
	}{
		"without a call":   {false, false, 5 * time.Second},
		"with a call":      {true, false, time.Minute},
		"with a short one": {true, true, 15 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &witness{}
				s, peer := met(t, Options{Client: true}, w)
				if c.open {
					peer.write(opened(2))
				}
				_ = makes(t.Context(), s, "/a/b", 1, 1) // a call of this side does not count
				began, drained := time.Now(), s.Drain()
				synctest.Wait()
				peer.write(literalPong(1<<40), literalPong(0))
				if link.IsClosed(drained) {
					t.Error("the answer to another PING counts")
				}
				if c.ends {
					time.Sleep(12 * time.Second)
					if err := w.first(t).Send(&link.Frame{End: &link.End{}}); err != nil {
						t.Error(err)
					}
				}
				<-drained
				if took := time.Since(began); took != c.after {
					t.Errorf("it is refused after %v, want %v", took, c.after)
				}
				peer.write(opened(4))
				if got, want := len(w.streams), map[bool]int{true: 1}[c.open]; got != want {
					t.Errorf("%d calls were accepted, want %d", got, want)
				}
				if d := drains(peer); len(d) != 2 || d[1] > 2 {
					t.Errorf("DRAIN says %v", d)
				}
			})
		})
	}
}

// A session that leaves, and has no call left, ends once the peer has answered: a call may
// be on its way before that.
func TestALeavingSessionWaitsForCallsOnTheirWay(t *testing.T) {
	for name, begin := range map[string]func(*Session){
		"Drain":  func(s *Session) { s.Drain() },
		"Retire": func(s *Session) { s.Retire() },
		"idle":   func(*Session) { time.Sleep(time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &witness{}
				s, peer := met(t, Options{Config: configured(false, func(c *options.Connections) {
					c.Given.Server = keepalive.ServerParameters{MaxConnectionIdle: time.Hour}
				})}, w)
				begin(s)
				synctest.Wait()
				peer.write(opened(1), literal(msg, 1, 1), literal(finish, 1))
				callee := w.first(t)
				peer.write(pong(peer))
				if link.IsClosed(s.Ended()) {
					t.Fatal("it ends while there is a call")
				}
				if err := callee.Send(&link.Frame{Msg: ofBytes(1), HasMsg: true, End: &link.End{}}); err != nil {
					t.Error(err)
				}
				<-s.Ended()
				if code, n := byes(peer); n != 1 || code != wire.ByeDone {
					t.Errorf("it says BYE %d times, with code %d", n, code)
				}
			})
		})
	}
}

// A client whose server drains accepts a call that arrives as the client's last call ends.
// It drains as well before it leaves.
func TestACallAsTheLastOfAPeerThatDrainsEnds(t *testing.T) {
	for _, order := range [][]string{{"end", "call", "answer"}, {"call", "end", "answer"}, {"end", "answer", "call"}} {
		synctest.Test(t, func(t *testing.T) {
			w := &witness{}
			s, peer := met(t, Options{Client: true}, w)
			out := makes(t.Context(), s, "/a/b", 1, 1)
			synctest.Wait()
			peer.write(announced)
			for _, step := range order {
				switch step {
				case "end":
					peer.write(whole(1, 1))
				case "call":
					peer.write(opened(2))
				case "answer":
					if len(w.streams) > 0 {
						if err := w.streams[0].Send(&link.Frame{End: &link.End{}}); err != nil {
							t.Error(err)
						}
						synctest.Wait()
					}
					peer.write(pong(peer))
				}
			}
			if got := <-out; got.err != nil {
				t.Error(got.err)
			}
			want := uint64(2)
			if order[2] == "call" {
				want = 0
			}
			if d := drains(peer); !slices.Equal(d, []uint64{wire.NoLast, want}) || len(w.streams) != int(want/2) {
				t.Errorf("%v: DRAIN says %v, and %d calls are accepted", order, d, len(w.streams))
			}
			if len(w.aborts) > 0 || !link.IsClosed(s.Ended()) {
				t.Errorf("%v: it is aborted for %v", order, w.aborts)
			}
			if code, n := byes(peer); n != 1 || code != wire.ByeDone {
				t.Errorf("%v: it says BYE %d times, with code %d", order, n, code)
			}
		})
	}
}

// A side that accepts no calls has nothing to wait for.
func TestASideWithoutAnAcceptorDrainsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, peer := met(t, Options{Client: true}, nil)
		if !link.IsClosed(s.Drain()) {
			t.Error("it waits for the peer")
		}
		if d := drains(peer); !slices.Equal(d, []uint64{0}) {
			t.Errorf("DRAIN says %v", d)
		}
	})
}

// Calls that were opened before the peer's DRAIN arrived are made, even if the writer was
// stuck and nothing of them has left. The answer to the PING follows their heads. A call
// that was aborted meanwhile is not waited for.
func TestTheAnswerToADrainFollowsTheHeadsOfOpenCalls(t *testing.T) {
	for name, abort := range map[string][]int{"all": nil, "first": {0}, "last": {2}, "none": {0, 1, 2}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, peer := lone(t, Options{Client: true}, &witness{}, true)
				peer.write(start())
				var streams []link.Stream
				var lost []error
				for range 3 {
					st, err := s.NewStream(t.Context(), &link.CallHeader{Method: "/a/b", Profile: &link.Profile{}})
					if err != nil {
						t.Fatal(err)
					}
					st.OnAbort(func(reason error) { lost = append(lost, reason) })
					if err := st.Send(&link.Frame{Msg: ofBytes(10), HasMsg: true}); err != nil {
						t.Fatal(err)
					}
					streams = append(streams, st)
				}
				peer.write(announced, wire.AppendPing(nil, wire.KindPing, [8]byte{7}))
				for _, i := range abort {
					streams[i].Abort(errors.New("enough"))
				}
				if len(lost) != len(abort) {
					t.Errorf("%d calls are aborted, want %d: %v", len(lost), len(abort), lost)
				}
				if _, err := s.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}}); !errors.Is(err, link.ErrUnprocessed) {
					t.Errorf("NewStream returns %v", err)
				}
				peer.read = make(chan struct{})
				go peer.readAll()
				synctest.Wait()
				heads := 0
				for _, f := range peer.frames() {
					if f.Kind.Stream() && f.Kind&wire.FlagHead != 0 {
						heads++
					}
					if f.Kind == wire.KindPong && heads != 3-len(abort) {
						t.Errorf("PONG comes after %d of %d heads", heads, 3-len(abort))
					}
				}
				if n := len(peer.of(wire.KindPong)); n != 1 || heads != 3-len(abort) {
					t.Errorf("%d PONGs and %d heads", n, heads)
				}
			})
		})
	}
}

// After the announcement one more DRAIN is taken, which must name a call. Calls above it
// are unprocessed, and so are those without a number.
func TestTheSecondDrain(t *testing.T) {
	for name, c := range map[string]struct {
		send [][]byte
		lost int    // of the calls 1, 3 and 5
		want string // in the reason for the session's end
	}{
		"an announcement":     {[][]byte{announced}, 0, ""},
		"all calls were seen": {[][]byte{announced, wire.AppendDrain(nil, 5)}, 0, ""},
		"one call was seen":   {[][]byte{announced, wire.AppendDrain(nil, 1)}, 2, ""},
		"none was seen":       {[][]byte{wire.AppendDrain(nil, 0)}, 3, ""},
		"lower":               {[][]byte{wire.AppendDrain(nil, 5), wire.AppendDrain(nil, 3)}, 1, ""},
		"announced twice":     {[][]byte{announced, announced}, 3, "drains twice"},
		"the same":            {[][]byte{wire.AppendDrain(nil, 3), wire.AppendDrain(nil, 3)}, 3, "drains twice"},
		"higher":              {[][]byte{wire.AppendDrain(nil, 3), announced}, 3, "drains twice"},
		"a third":             {[][]byte{announced, wire.AppendDrain(nil, 5), wire.AppendDrain(nil, 3)}, 3, "drains twice"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &witness{}
				s, peer := met(t, Options{Client: true}, w)
				lost := 0
				for range 3 {
					st, err := s.NewStream(t.Context(), &link.CallHeader{Method: "/a/b", Profile: &link.Profile{}})
					if err != nil {
						t.Fatal(err)
					}
					st.OnAbort(func(error) { lost++ })
				}
				synctest.Wait()
				peer.write(c.send...)
				if lost != c.lost {
					t.Errorf("%d calls are lost, want %d", lost, c.lost)
				}
				if len(w.closed) > 0 != (c.want != "") {
					t.Errorf("the session ends for %v", w.closed)
				}
				if c.want != "" {
					says(t, w.closed[0], c.want)
				}
			})
		})
	}
}

// The PING of a drain does not count among those that come too often.
func TestThePingOfADrainIsNotTooOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		_, peer := met(t, Options{}, w)
		ping := wire.AppendPing(nil, wire.KindPing, [8]byte{1})
		peer.write(ping, ping, ping, announced, ping)
		if n := len(peer.of(wire.KindPong)); n != 4 || len(w.closed) > 0 {
			t.Errorf("%d of 4 PINGs are answered; the session ends for %v", n, w.closed)
		}
	})
}

// No call whose opening has succeeded is lost to a drain, whichever sides drain, and when.
func TestNoOpenCallIsLostToADrain(t *testing.T) {
	each := map[string]func(cs, ss *Session){
		"the server": func(_, ss *Session) { ss.Drain() },
		"the client": func(cs, _ *Session) { cs.Drain() },
		"both":       func(cs, ss *Session) { go cs.Drain(); ss.Drain() },
		"retiring":   func(cs, ss *Session) { go cs.Retire(); ss.Retire() },
	}
	for name, drain := range each {
		t.Run(name, func(t *testing.T) {
			opened := 0
			for round := range needs.Rounds(15) {
				synctest.Test(t, func(t *testing.T) { opened += drainAmidUploads(t, round, drain) })
			}
			if opened == 0 {
				t.Error("no call was opened")
			}
		})
	}
}

// drainAmidUploads makes uploads in both directions until drain has refused new ones, and returns
// how many were opened.
func drainAmidUploads(t *testing.T, round int, drain func(cs, ss *Session)) (opened int) {
	a, b := net.Pipe()
	cs, ss := newSession(a, Options{Client: true, Name: "client"}), newSession(b, Options{Name: "server"})
	ss.Start(transporttest.Sink{Codec: codec.Proto()})
	cs.Start(transporttest.Sink{Codec: codec.Proto()})
	if err := errors.Join(cs.Meet(t.Context()), ss.Meet(t.Context())); err != nil {
		t.Fatal(err)
	}
	all := transporttest.Upload(t, codec.Proto(), 8, 30_000, cs, ss)
	for all.Opened() < 4*round { // time.Sleep would let all of them end
		runtime.Gosched()
	}
	drain(cs, ss)
	opened = all.Wait()
	_ = cs.Close(errors.New("the test is over"))
	<-cs.Gone()
	<-ss.Gone()
	return opened
}
