package mux

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/testing/needs"
	"github.com/nearcall/nearcall/internal/testing/transporttest"
	"github.com/nearcall/nearcall/internal/wire"
)

// TestEverythingAtOnce runs calls that open, send, receive, end and abort on both
// sides, until one side drains or closes, or the connection breaks. Whatever comes
// first, no goroutine may be left waiting.
func TestEverythingAtOnce(t *testing.T) {
	for seed := range uint64(needs.Rounds(15)) {
		synctest.Test(t, func(t *testing.T) {
			a, b := net.Pipe()
			everything(t, seed, a, b)
		})
	}
}

func TestEverythingAtOnceOverSockets(t *testing.T) {
	eachNetwork(t, func(t *testing.T, network string) {
		for seed := range uint64(needs.Rounds(15)) {
			t.Logf("seed %d", seed)
			a, b := ends(t, network)
			everything(t, seed, a, b)
		}
	})
}

func everything(t *testing.T, seed uint64, a, b net.Conn) {
	r := rand.New(rand.NewPCG(seed, 0))
	cs := newSession(a, Options{Name: "client", Client: true, Config: configured(true, func(c *options.Connections) { c.ConnWindow = wire.MinWindow })})
	ss := newSession(b, Options{Name: "server", Config: configured(false, func(c *options.Connections) { c.MaxStreams = uint32(r.IntN(3) * 10) })})
	// The sessions' readers start callees, so until the sessions are gone nobody waits for these.
	var callers, callees sync.WaitGroup
	servers, clients := &chaos{t: t, callees: &callees, seed: seed}, &chaos{t: t, callees: &callees, seed: seed + 1000}
	ss.Start(servers)
	cs.Start(clients)
	for i := range uint64(20) {
		callers.Go(func() {
			r := rand.New(rand.NewPCG(seed, i))
			s := []*Session{cs, ss}[r.IntN(2)]
			for range 10 {
				o := link.CallHeader{Method: "/a/b", Profile: &link.Profile{Encoding: map[bool]string{true: "gzip"}[r.IntN(20) == 0]}}
				if r.IntN(3) == 0 {
					o.Deadline = time.Now().Add(time.Second)
				}
				if i < 10 {
					lives(t, s, o, r)
					continue
				}
				st, err := s.NewStream(t.Context(), &o)
				if err != nil {
					if !errors.Is(err, link.ErrUnprocessed) {
						t.Error(err)
					}
					return
				}
				live(t, st, r, true)
			}
		})
	}
	time.Sleep(time.Duration(r.IntN(2000)) * time.Microsecond)
	s := []*Session{cs, ss}[r.IntN(2)]
	switch r.IntN(4) {
	case 0:
		s.Drain()
		callers.Wait()
		soon(t, "all calls end while the sessions live", func() bool {
			ended := func(s *Session) bool { return holds(s, func() bool { return s.calls == 0 || s.writing.lost }) }
			return ended(cs) && ended(ss)
		})
	case 1:
		_ = s.Close(errors.New("enough"))
	case 2:
		_ = a.Close()
	}
	callers.Wait()
	_ = cs.Close(errors.New("the test is over"))
	<-cs.Gone()
	<-ss.Gone()
	callees.Wait()
	if n := servers.closed + clients.closed; n != 2 {
		t.Errorf("%d were told of the end", n)
	}
	for _, s := range []*Session{cs, ss} {
		s.mu.Lock()
		if s.calls > 0 && !s.writing.lost {
			t.Errorf("%d calls count", s.calls)
		}
		if len(s.live) > 0 && !s.writing.lost || s.roles.Waiting != 0 || s.reading.caller != nil || s.roles.Interrupted || s.roles.Parked || s.writing.held.first != nil {
			t.Errorf("live %v, waiting %d, caller %v", len(s.live), s.roles.Waiting, s.reading.caller)
		}
		s.mu.Unlock()
	}
}

// lives makes a unary call, which may be cancelled at any moment.
func lives(t *testing.T, s *Session, o link.CallHeader, r *rand.Rand) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	switch r.IntN(4) {
	case 0:
		time.AfterFunc(time.Duration(r.IntN(500))*time.Microsecond, cancel)
	case 1:
		ctx, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(500))*time.Microsecond)
		defer cancel()
	}
	c, reply := unary(o.Method, r.IntN([]int{1, 100, 50_000}[r.IntN(3)]), 40_000)
	c.CallHeader = o
	if err := s.Invoke(ctx, c); err != nil {
		if c.Replied || *reply != nil && !writes(err) {
			t.Errorf("a call that ends with %v has a reply", err)
		}
		return
	}
	if len(*reply) > 40_000 {
		t.Errorf("a reply of %d bytes is taken", len(*reply))
	}
}

// chaos accepts or refuses calls at random, and runs live on them.
type chaos struct {
	t       *testing.T
	callees *sync.WaitGroup
	seed    uint64
	calls   uint64 // used by the reader only
	closed  int
}

func (*chaos) HandleUnary(*link.UnaryCall, bool) error { return link.ErrNoCall }
func (*chaos) Terms() link.Terms                       { return link.Terms{} }
func (c *chaos) Closed(error)                          { c.closed++ }
func (*chaos) Gone()                                   {}

func (c *chaos) HandleStream(s link.Stream, _ *link.CallHeader) error {
	c.calls++
	r := rand.New(rand.NewPCG(c.seed, c.calls))
	if r.IntN(10) == 0 {
		return errors.New("refused")
	}
	c.callees.Go(func() { live(c.t, s, r, false) })
	return nil
}

// live is one side of a call: it sends and receives random frames until the call ends.
func live(t *testing.T, s link.Stream, r *rand.Rand, caller bool) {
	told := 0
	var mu sync.Mutex
	s.OnAbort(func(error) {
		mu.Lock()
		defer mu.Unlock()
		if told++; told > 1 {
			t.Error("the abort is told twice")
		}
	})
	var both sync.WaitGroup
	seed := r.Uint64()
	both.Go(func() {
		r := rand.New(rand.NewPCG(seed, 0))
		for i := range r.IntN(10) {
			f := &link.Frame{Msg: ofBytes(r.IntN([]int{1, 100, 50_000}[r.IntN(3)])), HasMsg: true}
			if i == 0 && !caller {
				f.Header = metadata.MD{"k": {"v"}}
			}
			if s.Send(f) != nil {
				return
			}
		}
		switch {
		case r.IntN(5) == 0:
			s.Abort(context.Canceled)
		case caller:
			_ = s.Send(&link.Frame{EndSend: true})
		default:
			_ = s.Send(&link.Frame{End: &link.End{Trailer: metadata.MD{"t": {"v"}}}})
		}
	})
	var b []byte
	f := &link.Frame{Sink: message.Sink{Dst: &b, Codec: rawCodec, Limit: 40_000}}
	for f.End == nil && !f.EndSend {
		var refused *message.RecvError
		if err := s.Recv(f); err != nil && !errors.As(err, &refused) {
			break
		}
	}
	both.Wait()
	if caller {
		s.Abort(context.Canceled)
	}
}

// TestByeArrivesOverSockets checks that on a connection with CloseWrite the peer reads
// everything up to BYE.
func TestByeArrivesOverSockets(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			address := "127.0.0.1:0"
			if network == "unix" {
				needs.UnixSockets(t)
				address = t.TempDir() + "/s"
			}
			lis, err := net.Listen(network, address)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = lis.Close() }()
			a, err := net.Dial(network, lis.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			b, err := lis.Accept()
			if err != nil {
				t.Fatal(err)
			}
			accepted := make(transporttest.Accepter, 1)
			cs, ss := newSession(a, Options{Client: true}), newSession(b, Options{Name: "server's peer"})
			ss.Start(accepted)
			cs.Start(nil)
			caller, callee := call(t, cs, accepted, "")
			open, _ := call(t, cs, accepted, "")
			want := noise(1 << 20)
			if err := callee.Send(&link.Frame{Msg: message.Encoded(slice(want)), HasMsg: true, End: &link.End{}}); err != nil {
				t.Fatal(err)
			}
			_ = ss.Close(errors.New("stopping"))
			wants(t, caller, want)
			says(t, open.Recv(&link.Frame{}), "stopping")
			<-cs.Gone()
			<-ss.Gone()
		})
	}
}

// A deaf connection fails to write after take bytes. Reads still work.
type deaf struct {
	net.Conn
	mu   sync.Mutex
	take int
}

var errDeaf = errors.New("nobody reads")

func (d *deaf) Write(b []byte) (int, error) {
	d.mu.Lock()
	d.take -= len(b)
	left := d.take
	d.mu.Unlock()
	if left < 0 {
		return 0, errDeaf
	}
	return d.Conn.Write(b)
}

func TestAWayThatBreaks(t *testing.T) {
	for name, c := range map[string]struct {
		then func(peer *raw)
		want string
		took time.Duration
	}{
		"and no word":     {func(*raw) {}, "nobody reads", lastWords},
		"bye":             {func(peer *raw) { peer.write(wire.AppendBye(nil, wire.ByeClosed, "lunch")) }, "lunch", 0},
		"hang-up":         {func(peer *raw) { _ = peer.conn.Close() }, "connection lost", 0},
		"against a rule":  {func(peer *raw) { peer.write([]byte{0, 0}) }, "length 0", 0},
		"closed meantime": {func(peer *raw) {}, "the owner's", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mine, peers := net.Pipe()
				s := newSession(&deaf{Conn: mine, take: 60}, Options{Client: true, Name: "peer"})
				s.Start(nil)
				peer := &raw{T: t, conn: peers, read: make(chan struct{})}
				go peer.readAll()
				peer.write(start())
				began := time.Now()
				st, err := s.NewStream(t.Context(), &link.CallHeader{Method: "/a/b", Profile: &link.Profile{UserAgent: "nearcall, with something to say"}})
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				c.then(peer)
				if name == "closed meantime" {
					_ = s.Close(errors.New("the owner's"))
				}
				says(t, st.Recv(&link.Frame{}), c.want)
				<-s.Gone()
				if took := time.Since(began); took != c.took {
					t.Errorf("it took %v, want %v", took, c.took)
				}
				empty(t, s)
				_ = peers.Close()
				<-peer.read
			})
		})
	}
}

// A closer accepts a call and closes the session while doing so. Its handler may send a
// frame after that.
type closer struct {
	session *Session
	handle  func(link.Stream)
}

func (*closer) HandleUnary(*link.UnaryCall, bool) error { return link.ErrNoCall }
func (*closer) Terms() link.Terms                       { return link.Terms{} }
func (*closer) Closed(error)                            {}
func (*closer) Gone()                                   {}

func (c *closer) HandleStream(s link.Stream, _ *link.CallHeader) error {
	_ = c.session.Close(errors.New("stopping"))
	c.handle(s)
	return nil
}

// A call that is accepted while the session ends is aborted like any other open call,
// and its caller learns the same reason.
func TestACallThatIsAcceptedAsTheSessionEnds(t *testing.T) {
	for name, handle := range map[string]func(t *testing.T, s link.Stream){
		"and says nothing": func(*testing.T, link.Stream) {},
		"and ends": func(t *testing.T, s link.Stream) {
			if err := s.Send(&link.Frame{End: &link.End{}}); err == nil || err.Error() != "stopping" {
				t.Errorf("Send returns %v", err)
			}
		},
		"and aborts": func(_ *testing.T, s link.Stream) { s.Abort(errors.New("the handler's")) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := net.Pipe()
				cs, ss := newSession(a, Options{Client: true, Name: "client"}), newSession(b, Options{Name: "server"})
				ss.Start(&closer{ss, func(s link.Stream) { handle(t, s) }})
				cs.Start(nil)
				st, err := cs.NewStream(t.Context(), &link.CallHeader{Method: "/a/b", Profile: &link.Profile{}})
				if err != nil {
					t.Fatal(err)
				}
				if err := st.Recv(&link.Frame{}); err == nil || err.Error() != "client: stopping" {
					t.Errorf("the caller is told %v", err)
				}
				<-cs.Gone()
				<-ss.Gone()
			})
		})
	}
}
