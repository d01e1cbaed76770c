package mux

import (
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/keepalive"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/wire"
)

// pings returns how many PINGs a peer has received.
func pings(peer *raw) int {
	peer.Helper()
	return len(peer.of(wire.KindPing))
}

func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestASilentPeerIsAskedAndGivenUp(t *testing.T) {
	for name, o := range map[string]Options{
		"client": {Client: true, Config: configured(true, func(c *options.Connections) {
			c.Given.Client = keepalive.ClientParameters{Time: time.Minute, Timeout: 10 * time.Second}
		})},
		"server": {Config: configured(false, func(c *options.Connections) {
			c.Given.Server = keepalive.ServerParameters{Time: time.Minute, Timeout: 10 * time.Second}
		})},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &witness{}
				s, peer := met(t, o, w)
				if o.Client {
					st, err := s.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}})
					if err != nil {
						t.Fatal(err)
					}
					w.watch(st)
				}
				for i := range 3 { // one PING per minute without input, as long as the peer answers
					pass(time.Minute - 1)
					if n := pings(peer); n != i {
						t.Fatalf("%d PINGs after less than a minute of silence, want %d", n, i)
					}
					pass(1)
					if n := pings(peer); n != 1+i {
						t.Fatalf("%d PINGs after a minute of silence, want %d", n, 1+i)
					}
					pass(7 * time.Second)
					peer.write(wire.AppendPing(nil, wire.KindPong, [8]byte{}))
					synctest.Wait()
					if n := pings(peer); n != 1+i || len(w.told()) > 0 {
						t.Fatalf("%d PINGs; closed for %v", n, w.told())
					}
				}
				pass(time.Minute)
				pass(10*time.Second - 1)
				if len(w.told()) > 0 {
					t.Fatalf("closed too early, for %v", w.told())
				}
				pass(1)
				if len(w.told()) != 1 {
					t.Fatalf("closed for %v", w.told())
				}
				says(t, w.told()[0], "peer: ", "did not answer")
				<-s.Gone()
				if len(w.aborts) != len(w.streams) {
					t.Errorf("calls are aborted for %v", w.aborts)
				}
			})
		})
	}
}

// TestAClientWithoutCallsIsDormant checks that a client without calls sends no PINGs,
// and that one which was dormant sends a PING at once when a call opens.
func TestAClientWithoutCallsIsDormant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		s, peer := met(t, Options{Client: true, Config: configured(true, func(c *options.Connections) {
			c.Given.Client = keepalive.ClientParameters{Time: time.Minute, Timeout: 10 * time.Second}
		})}, w)
		pass(time.Hour)
		if n := pings(peer); n > 0 || len(w.told()) > 0 {
			t.Fatalf("%d PINGs without a call; closed for %v", n, w.told())
		}
		for i := range 2 {
			out := makes(t.Context(), s, "/a/b", 1, 1)
			synctest.Wait()
			if n := pings(peer); n != 1+i {
				t.Fatalf("%d PINGs with call %d", n, i)
			}
			peer.write(whole(uint64(1+2*i), 1))
			if got := <-out; got.err != nil {
				t.Fatal(got.err)
			}
			pass(time.Hour)
			if n := pings(peer); n != 1+i || len(w.told()) > 0 {
				t.Fatalf("%d PINGs; closed for %v", n, w.told())
			}
		}
		// An unanswered PING ends the session after the usual timeout.
		out := makes(t.Context(), s, "/a/b", 1, 1)
		pass(10*time.Second - 1)
		if len(w.told()) > 0 {
			t.Fatalf("closed too early, for %v", w.told())
		}
		if got := <-out; got.err == nil {
			t.Error("the call ends well")
		} else {
			says(t, got.err, "did not answer")
		}
		<-s.Gone()
	})
}

func TestAClientThatPingsWithoutCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		// PINGs are still at least ten seconds apart.
		s, peer := met(t, Options{Client: true, Config: configured(true, func(c *options.Connections) {
			c.Given.Client = keepalive.ClientParameters{Time: 1, PermitWithoutStream: true}
		})}, w)
		for i := range 5 {
			pass(10 * time.Second)
			if n := pings(peer); n != 1+i {
				t.Fatalf("%d PINGs, want %d", n, 1+i)
			}
			peer.write(wire.AppendPing(nil, wire.KindPong, [8]byte{}))
			synctest.Wait()
		}
		began := time.Now()
		<-s.Gone()
		if took := time.Since(began); took != 30*time.Second {
			t.Errorf("it is given up after %v", took)
		}
	})
}

// TestAClientPingsNoMoreOftenThanItsServerTakes checks that a client observes the
// limits in its server's HELLO, and uses the shorter one once a call opens.
func TestAClientPingsNoMoreOftenThanItsServerTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hello := wire.Hello{Version: 1, Stream: wire.MinWindow, Connection: wire.MinWindow, Block: wire.MinBlock, Ping: 120_000, IdlePing: 600_000}
		s, peer := metWith(t, Options{Client: true, Config: configured(true, func(c *options.Connections) {
			c.Given.Client = keepalive.ClientParameters{Time: time.Minute, PermitWithoutStream: true}
		})}, &witness{},
			wire.AppendHello([]byte(wire.Magic), &hello))
		n := 0
		next := func(after time.Duration) {
			t.Helper()
			pass(after - 1)
			if got := pings(peer); got != n {
				t.Fatalf("%d PINGs before it is time for the next, want %d", got, n)
			}
			pass(1)
			if n++; pings(peer) != n {
				t.Fatalf("%d PINGs, want %d", pings(peer), n)
			}
			peer.write(wire.AppendPing(nil, wire.KindPong, [8]byte{}))
		}
		next(time.Minute)
		next(11 * time.Minute)
		if _, err := s.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}}); err != nil {
			t.Fatal(err)
		}
		next(132 * time.Second)
		next(132 * time.Second)
		_ = s.Close(errors.New("done"))
		<-s.Gone()
	})
}

// TestAServerSaysHowOftenItTakesPings checks that HELLO carries the limits of the
// enforcement policy.
func TestAServerSaysHowOftenItTakesPings(t *testing.T) {
	for name, c := range map[string]struct {
		policy     keepalive.EnforcementPolicy
		ping, idle uint64
	}{
		"by default":      {keepalive.EnforcementPolicy{}, 300_000, 7_200_000},
		"as it was told":  {keepalive.EnforcementPolicy{MinTime: 1500 * time.Microsecond, PermitWithoutStream: true}, 2, 2},
		"of idle clients": {keepalive.EnforcementPolicy{MinTime: time.Second}, 1000, 7_200_000},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, peer := met(t, Options{Config: configured(false, func(o *options.Connections) { o.Given.Enforcement = c.policy })}, &witness{})
				h, err := wire.ParseHello(peer.of(wire.KindHello)[0].Body)
				if err != nil || h.Ping != c.ping || h.IdlePing != c.idle {
					t.Errorf("HELLO says %+v, %v", h, err)
				}
				_ = s.Close(errors.New("done"))
				<-s.Gone()
			})
		})
	}
}

func TestWithoutKeepaliveAClientSendsNoPing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, peer := met(t, Options{Client: true}, nil)
		if _, err := s.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}}); err != nil {
			t.Fatal(err)
		}
		pass(24 * time.Hour)
		if n := pings(peer); n > 0 || link.IsClosed(s.Ended()) {
			t.Errorf("%d PINGs", n)
		}
	})
}

// TestAServerAsksEveryTwoHours checks the default interval of a server's PINGs.
func TestAServerAsksEveryTwoHours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, peer := met(t, Options{}, nil)
		pass(2*time.Hour - 1)
		if n := pings(peer); n > 0 {
			t.Errorf("%d PINGs", n)
		}
		pass(1)
		if n := pings(peer); n != 1 {
			t.Errorf("%d PINGs", n)
		}
		pass(20 * time.Second)
		<-s.Gone()
	})
}

// bySelf returns a server with parameters k, and a client that sends no PINGs.
func bySelf(t *testing.T, k keepalive.ServerParameters) (cs, ss *Session, w *witness) {
	w = &witness{}
	cs, ss = pair(t, Options{}, Options{Config: configured(false, func(c *options.Connections) { c.Given.Server = k })}, w)
	return cs, ss, w
}

func TestAConnectionThatIsIdleForLongEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cs, ss, w := bySelf(t, keepalive.ServerParameters{MaxConnectionIdle: time.Minute})
		pass(50 * time.Second)
		st, err := cs.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}})
		if err != nil {
			t.Fatal(err)
		}
		callee := w.first(t)
		pass(time.Hour) // a connection with a long call is not idle
		if link.IsClosed(cs.Done()) {
			t.Fatal("it ends while there is a call")
		}
		if err := callee.Send(&link.Frame{End: &link.End{}}); err != nil {
			t.Fatal(err)
		}
		if err := st.Recv(&link.Frame{}); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute - 1)
		if link.IsClosed(cs.Done()) {
			t.Fatal("it ends too early")
		}
		began := time.Now()
		<-cs.Gone()
		<-ss.Gone()
		if took := time.Since(began); took > time.Minute {
			t.Errorf("it ends %v too late", took)
		}
		if n := len(w.told()); n != 1 {
			t.Errorf("the server is told of the end %d times", n)
		}
	})
}

func TestAConnectionEndsWithItsAge(t *testing.T) {
	for name, c := range map[string]struct {
		grace time.Duration
		want  bool // the call is aborted with the connection
	}{"without grace": {0, false}, "with grace": {10 * time.Minute, true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cs, ss, w := bySelf(t, keepalive.ServerParameters{MaxConnectionAge: time.Hour, MaxConnectionAgeGrace: c.grace})
				out := makes(t.Context(), cs, "/a/b", 1, 1)
				callee := w.first(t)
				began := time.Now()
				<-cs.Done()
				if age := time.Since(began); age < 54*time.Minute || age > 66*time.Minute {
					t.Errorf("it drains after %v", age)
				}
				if got := <-makes(t.Context(), cs, "/a/b", 1, 1); !errors.Is(got.err, link.ErrUnprocessed) {
					t.Errorf("a new call ends with %v", got.err)
				}
				pass(10*time.Minute - 1)
				if link.IsClosed(ss.Ended()) {
					t.Fatal("it ends while there is a call")
				}
				if c.want {
					pass(1)
					if got := <-out; got.err == nil {
						t.Error("the call ends well")
					}
				} else {
					pass(24 * time.Hour)
					if err := callee.Send(&link.Frame{Msg: ofBytes(1), HasMsg: true, End: &link.End{}}); err != nil {
						t.Error(err)
					}
					if got := <-out; got.err != nil {
						t.Error(got.err)
					}
				}
				<-cs.Gone()
				<-ss.Gone()
				if c.want { // otherwise either side may close first
					says(t, w.told()[0], "reached MaxConnectionAge")
				}
			})
		})
	}
}

// byes returns the code of the first BYE that a peer has received, and how many there
// were.
func byes(peer *raw) (code wire.ByeCode, n int) {
	peer.Helper()
	all := peer.of(wire.KindBye)
	if len(all) > 0 {
		code, _, _ = wire.ParseBye(all[0].Body)
	}
	return code, len(all)
}

func TestPingsThatComeTooOften(t *testing.T) {
	ping := wire.AppendPing(nil, wire.KindPing, [8]byte{1})
	for name, c := range map[string]struct {
		policy keepalive.EnforcementPolicy
		call   bool
		every  time.Duration
		taken  int // PINGs before the session ends; -1 if it does not
	}{
		"within the least time":      {keepalive.EnforcementPolicy{MinTime: time.Minute}, true, time.Minute - 1, 3},
		"at the least time":          {keepalive.EnforcementPolicy{MinTime: time.Minute}, true, time.Minute, -1},
		"without a call":             {keepalive.EnforcementPolicy{MinTime: time.Minute}, false, 2*time.Hour - 1, 3},
		"rarely without a call":      {keepalive.EnforcementPolicy{MinTime: time.Minute}, false, 2 * time.Hour, -1},
		"permitted without one":      {keepalive.EnforcementPolicy{MinTime: time.Minute, PermitWithoutStream: true}, false, time.Minute, -1},
		"too often without one":      {keepalive.EnforcementPolicy{MinTime: time.Minute, PermitWithoutStream: true}, false, time.Second, 3},
		"within the default's time":  {keepalive.EnforcementPolicy{}, true, 5*time.Minute - 1, 3},
		"at the default's time":      {keepalive.EnforcementPolicy{}, true, 5 * time.Minute, -1},
		"all at once, in one write":  {keepalive.EnforcementPolicy{}, true, 0, 3},
		"and permitted without call": {keepalive.EnforcementPolicy{PermitWithoutStream: true}, false, 0, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &witness{}
				s, peer := met(t, Options{Config: configured(false, func(o *options.Connections) {
					o.Given.Enforcement = c.policy
					o.Given.Server = keepalive.ServerParameters{Time: 1000 * time.Hour}
				})}, w)
				if c.call {
					peer.write(opened(1))
				}
				for i := range 10 {
					if over := c.taken >= 0 && i > c.taken; over != link.IsClosed(s.Ended()) {
						t.Fatalf("after %d PINGs the session has ended: %v", i, w.told())
					}
					peer.write(ping)
					pass(c.every)
				}
				code, n := byes(peer)
				if c.taken < 0 {
					if n > 0 || len(peer.of(wire.KindPong)) != 10 {
						t.Errorf("%d BYEs, %d PONGs", n, len(peer.of(wire.KindPong)))
					}
					return
				}
				if n != 1 || code != wire.ByePings {
					t.Errorf("%d BYEs, with code %d", n, code)
				}
				says(t, w.told()[0], "too many pings")
			})
		})
	}
}

// A server takes PINGs as often during its own calls to the client as during the client's.
func TestPingsDuringCallsToTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, peer := met(t, Options{Config: configured(false, func(c *options.Connections) { c.Given.Enforcement = keepalive.EnforcementPolicy{MinTime: time.Minute} })}, &witness{})
		synctest.Wait()
		if _, err := s.NewStream(t.Context(), &link.CallHeader{Method: "/a/b", Profile: new(link.Profile)}); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			pass(time.Minute)
			peer.write(wire.AppendPing(nil, wire.KindPing, [8]byte{1}))
		}
		synctest.Wait()
		if code, n := byes(peer); n > 0 {
			t.Errorf("%d BYEs, with code %d", n, code)
		}
	})
}

// TestPingsWhileThisSideSpeaks checks that sending a frame of a call resets the strikes
// at the next PING, as in gRPC.
func TestPingsWhileThisSideSpeaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		s, peer := met(t, Options{}, w)
		peer.write(opened(1))
		st := w.first(t)
		ping := wire.AppendPing(nil, wire.KindPing, [8]byte{1})
		peer.write(ping)
		for range 10 {
			peer.write(ping) // one strike
			peer.write(ping) // another
			if link.IsClosed(s.Ended()) {
				t.Fatalf("the session has ended: %v", w.told())
			}
			send(t, st, []byte{1})
			synctest.Wait()
			peer.write(ping)
		}
		// Frames that belong to no call reset nothing.
		peer.write(ping, ping, literal(0x40, 0), ping)
		if code, n := byes(peer); n != 1 || code != wire.ByePings {
			t.Errorf("%d BYEs, with code %d", n, code)
		}
	})
}

// TestAServersPingsAreNotHeldAgainstIt checks that a client accepts any number of
// PINGs.
func TestAServersPingsAreNotHeldAgainstIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, peer := met(t, Options{Client: true}, nil)
		for range 100 {
			peer.write(wire.AppendPing(nil, wire.KindPing, [8]byte{1}))
		}
		if n := len(peer.of(wire.KindPong)); n != 100 || link.IsClosed(s.Ended()) {
			t.Errorf("%d PONGs", n)
		}
	})
}

// TestASessionThatIsGoneLeavesNoTimer checks that no timer is left to fire.
func TestASessionThatIsGoneLeavesNoTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, o := range []Options{
			{Client: true, Config: configured(true, func(c *options.Connections) {
				c.Given.Client = keepalive.ClientParameters{Time: time.Minute, PermitWithoutStream: true}
			})},
			{Config: configured(false, func(c *options.Connections) {
				c.Given.Server = keepalive.ServerParameters{Time: time.Minute, MaxConnectionIdle: time.Minute, MaxConnectionAge: time.Minute, MaxConnectionAgeGrace: time.Minute}
			})},
		} {
			mine, peers := net.Pipe()
			s, w := newSession(mine, o), &witness{}
			s.Start(w)
			_ = peers.Close()
			<-s.Gone()
			before := len(s.writing.control)
			pass(time.Hour)
			if !s.life.Next().IsZero() || s.timer.Stop() || s.reading.idle != nil && s.reading.idle.Stop() {
				t.Error("a timer runs")
			}
			if len(w.told()) != 1 || len(s.writing.control) != before {
				t.Errorf("closed for %v", w.told())
			}
		}
	})
}
