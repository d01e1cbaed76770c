package quic

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	q "github.com/quic-go/quic-go"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/registry"
	"github.com/nearcall/nearcall/internal/testing/needs"
	"github.com/nearcall/nearcall/internal/testing/transporttest"
	"github.com/nearcall/nearcall/internal/wire"
)

// A scripted client is no session. It notes the DRAINs of its server.
type scripted struct {
	*testing.T
	conn    *q.Conn
	control *q.SendStream

	mu     sync.Mutex
	drains []uint64
}

// script returns a client, and its server's session, which takes calls and never ends them.
func script(t *testing.T) (c *scripted, server *session, w *holding) {
	w = new(holding)
	sessions := make(chan *session, 1)
	n := newNetwork(t, &registry.Settings{}, func(s link.Session) link.Acceptor {
		sessions <- s.(*session)
		return w
	})
	_, config := testTLS()
	pc, err := n.dialer(t, &registry.Settings{}).listen()
	if err != nil {
		t.Fatal(err)
	}
	tr := &q.Transport{Conn: pc}
	t.Cleanup(func() { _, _ = tr.Close(), pc.Close() })
	c = &scripted{T: t}
	if c.conn, err = tr.Dial(t.Context(), n.server, secured(config), &q.Config{KeepAlivePeriod: 10 * time.Second}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.conn.CloseWithError(0, "") })
	if c.control, err = c.conn.OpenUniStream(); err != nil {
		t.Fatal(err)
	}
	c.say(wire.AppendHello(nil, &wire.Hello{Version: 1, Features: wire.FeatureNoCalls, Stream: wire.MinWindow, Connection: wire.MinWindow, Block: wire.MinBlock}))
	go c.read()
	return c, <-sessions, w
}

// read reads the server's control stream.
func (c *scripted) read() {
	control, err := c.conn.AcceptUniStream(c.Context())
	if err != nil {
		return
	}
	var all []byte
	buf := make([]byte, 1024)
	for err == nil {
		var n int
		n, err = control.Read(buf)
		all = append(all, buf[:n]...)
		for {
			f, size, _ := wire.Next(all)
			if size == 0 {
				break
			}
			all = all[size:]
			if f.Kind == wire.KindDrain {
				last, _ := wire.ParseDrain(f.Body)
				c.mu.Lock()
				c.drains = append(c.drains, last)
				c.mu.Unlock()
			}
		}
	}
}

func (c *scripted) say(b []byte) {
	if _, err := c.control.Write(b); err != nil {
		c.Error(err)
	}
	c.wait()
}

// wait waits until the server has received what was sent.
func (c *scripted) wait() {
	time.Sleep(100 * time.Millisecond)
	synctest.Wait()
}

// answer says that the client's last call is the one with that number.
func (c *scripted) answer(last uint64) {
	var data [8]byte
	binary.LittleEndian.PutUint64(data[:], last)
	c.say(wire.AppendPing(nil, wire.KindPong, data))
}

func (c *scripted) call() *q.Stream {
	qs, err := c.conn.OpenStream()
	if err != nil {
		c.Fatal(err)
	}
	_, _ = qs.Write(head(false))
	c.wait()
	return qs
}

func (c *scripted) said() []uint64 {
	c.wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.drains)
}

// holding takes calls and keeps them.
type holding struct {
	mu    sync.Mutex
	taken []link.Stream
}

func (*holding) HandleUnary(*link.UnaryCall, bool) error { return link.ErrNoCall }
func (*holding) Terms() link.Terms                       { return link.Terms{} }
func (*holding) Closed(error)                            {}
func (*holding) Gone()                                   {}

func (h *holding) HandleStream(s link.Stream, _ *link.CallHeader) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.taken = append(h.taken, s)
	return nil
}

func (h *holding) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.taken)
}

// Calls are accepted up to the one that the peer names as its last, whatever arrives first.
func TestCallsAreAcceptedUpToTheLastOfThePeer(t *testing.T) {
	begin := map[string]func(*session){
		"Drain":  func(s *session) { s.Drain() },
		"Retire": (*session).Retire,
		"age":    func(s *session) { s.Drain() },
	}
	for name, drain := range begin {
		for _, order := range [][]string{
			{"drain", "answer", "call", "call"},
			{"drain", "call", "answer", "call"},
			{"drain", "call", "call", "answer"},
			{"call", "drain", "answer", "call"},
			{"call", "drain", "call", "answer"},
			{"call", "call", "drain", "answer"},
		} {
			synctest.Test(t, func(t *testing.T) {
				c, server, w := script(t)
				for _, step := range order {
					switch step {
					case "drain":
						drain(server)
						c.wait()
					case "answer":
						c.answer(2)
					case "call":
						c.call()
					}
				}
				late := c.call()
				if n := w.count(); n != 2 {
					t.Errorf("%s: %v: %d calls are accepted, want 2", name, order, n)
				}
				if got, want := c.said(), []uint64{wire.NoLast, 2}; !slices.Equal(got, want) {
					t.Errorf("%s: %v: DRAIN says %v, want %v", name, order, got, want)
				}
				_, err := late.Read(make([]byte, 1))
				if reset, ok := errors.AsType[*q.StreamError](err); !ok || reset.ErrorCode != q.StreamErrorCode(wire.ResetUnprocessed) {
					t.Errorf("%s: %v: a later call ends with %v", name, order, err)
				}
			})
		}
	}
}

// A peer that does not answer, or whose last call does not come, is refused after some seconds if it
// has no call open, and after a minute if it has.
func TestAPeerThatDoesNotAnswerADrain(t *testing.T) {
	for name, c := range map[string]struct {
		calls  int
		answer bool // names a call that does not come
		after  time.Duration
	}{
		"no call":               {0, false, 5 * time.Second},
		"no call, wrong number": {0, true, 5 * time.Second},
		"a call":                {1, false, time.Minute},
		"a call, wrong number":  {1, true, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				peer, server, w := script(t)
				for range c.calls {
					peer.call()
				}
				began, drained := time.Now(), server.Drain()
				if c.answer {
					peer.answer(7)
				}
				<-drained
				if took := time.Since(began); took != c.after {
					t.Errorf("it is refused after %v, want %v", took, c.after)
				}
				if d, n := peer.said(), uint64(w.count()); !slices.Equal(d, []uint64{wire.NoLast, n}) || int(n) != c.calls {
					t.Errorf("DRAIN says %v after %d calls", d, n)
				}
			})
		})
	}
}

// A peer that says nothing new of its drain ends the connection.
func TestDrainsThatSayNothingNew(t *testing.T) {
	for name, send := range map[string][]byte{
		"an answer to nothing": wire.AppendPing(nil, wire.KindPong, [8]byte{}),
		"announced twice":      slices.Concat(announcement, announcement),
		"the same":             wire.AppendDrain(wire.AppendDrain(nil, 3), 3),
		"higher":               wire.AppendDrain(wire.AppendDrain(nil, 3), 4),
		"a third":              wire.AppendDrain(wire.AppendDrain(slices.Clone(announcement), 3), 2),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, server, _ := script(t)
				c.say(send)
				if !link.IsClosed(server.Ended()) {
					t.Error("the session goes on")
				}
			})
		})
	}
}

// A lateConn delivers each packet after a while, in another order.
type lateConn struct {
	net.PacketConn
	mu   sync.Mutex
	rand *rand.Rand
}

func (c *lateConn) WriteTo(b []byte, to net.Addr) (int, error) {
	b = append([]byte(nil), b...)
	c.mu.Lock()
	after, lost := time.Duration(c.rand.IntN(30))*time.Millisecond, c.rand.IntN(20) == 0
	c.mu.Unlock()
	if !lost {
		time.AfterFunc(after, func() { _, _ = c.PacketConn.WriteTo(b, to) })
	}
	return len(b), nil
}

// No call whose opening has succeeded is lost to a drain, whichever sides drain and when, over a
// network that loses and reorders packets.
func TestNoOpenCallIsLostToADrain(t *testing.T) {
	for name, drain := range map[string]func(client, server *session){
		"the server": func(_, server *session) { server.Drain() },
		"the client": func(client, _ *session) { client.Drain() },
		"both":       func(client, server *session) { client.Drain(); server.Drain() },
		"retiring":   func(client, server *session) { server.Retire(); client.Retire() },
	} {
		t.Run(name, func(t *testing.T) {
			opened := 0
			for round := range uint64(needs.Rounds(10)) {
				synctest.Test(t, func(t *testing.T) { opened += drainAmidUploads(t, round, drain) })
			}
			if opened == 0 {
				t.Error("no call was opened")
			}
		})
	}
}

// drainAmidUploads makes uploads in both directions until drain has refused new ones, and returns how
// many were opened.
func drainAmidUploads(t *testing.T, round uint64, drain func(client, server *session)) (opened int) {
	sessions := make(chan *session, 1)
	sink := transporttest.Sink{Codec: codec.Proto()}
	late := func(pc net.PacketConn, seed uint64) net.PacketConn {
		return &lateConn{PacketConn: pc, rand: rand.New(rand.NewPCG(round, seed))}
	}
	n := plainNetwork(t)
	n.lis.pc = late(n.lis.pc, 0)
	config, _ := testTLS()
	if err := n.lis.Configure(&registry.Settings{Config: serverOptions(), TLS: config}); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = n.lis.Sessions(func(s link.Session) link.Acceptor {
			sessions <- s.(*session)
			return sink
		})
	}()
	defer func() { _ = n.lis.Close() }()
	d := n.dialer(t, &registry.Settings{Accept: func(link.Session) link.Acceptor { return sink }})
	listen := d.listen
	d.listen = func() (net.PacketConn, error) {
		pc, err := listen()
		return late(pc, 1), err
	}
	c, err := d.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	client, server := c.(*session), <-sessions
	all := transporttest.Upload(t, codec.Proto(), 6, 10_000, client, server)
	time.Sleep(time.Duration(round*7) * time.Millisecond)
	drain(client, server)
	opened = all.Wait()
	_ = client.Close(errors.New("the test is over"))
	_ = server.Close(errors.New("the test is over"))
	return opened
}
