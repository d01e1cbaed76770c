package mux

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/mux/waits"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/testing/needs"
	"github.com/nearcall/nearcall/internal/wire"
)

// TestASenderThatReadsIsWokenWhenItsStreamHasRoom: a sender waits for credit, and reads the
// connection meanwhile. The credit arrives while the stream has queued as much as it may. Then
// the writer makes room, and must wake the sender.
func TestASenderThatReadsIsWokenWhenItsStreamHasRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newLine(t, 1<<10, &delays{})
		s := newSession(a, Options{Client: true, Name: "peer", Config: configured(true, func(c *options.Connections) { c.NoSpinning = true })})
		s.Start(nil)
		var reading atomic.Bool
		go func() { // the peer reads on only when it is told so
			buf := make([]byte, 1<<10)
			for {
				if _, err := b.Read(buf); err != nil {
					return
				}
				for !reading.Load() {
					time.Sleep(time.Millisecond)
				}
			}
		}()
		reading.Store(true)
		hello := wire.Hello{Version: wire.Version, Stream: wire.MinWindow, Connection: 64 << 20, Block: wire.MinBlock}
		_, _ = b.Write(wire.AppendHello([]byte(wire.Magic), &hello))
		time.Sleep(time.Second)
		st, err := s.NewStream(t.Context(), &link.CallHeader{Method: "/a/b", Profile: &link.Profile{}})
		if err != nil {
			t.Fatal(err)
		}
		send(t, st, noise(waits.MaxBacklog+4*maxBatch)) // for a part of which there is credit
		time.Sleep(time.Second)
		for holds(s, func() bool { return s.roles.Reader != waits.Nobody }) { // the read loop retires after a read, for a while
			_, _ = b.Write(wire.AppendPing(nil, wire.KindPing, [8]byte{}))
			time.Sleep(time.Millisecond)
		}
		sent := make(chan error, 1)
		go func() { sent <- st.Send(&link.Frame{Msg: ofBytes(10), HasMsg: true}) }()
		time.Sleep(time.Second)
		if !holds(s, func() bool { return s.reading.caller == &st.(*stream).sender && s.roles.Parked }) {
			t.Fatal("the sender does not read")
		}
		reading.Store(false)
		time.Sleep(time.Second)
		_, _ = b.Write(wire.AppendCredit(nil, 1, 8*maxBatch))
		time.Sleep(time.Second)
		if !holds(s, func() bool {
			return st.(*stream).flow.Full(s.writing.backlog) && st.(*stream).flow.Credit > int64(st.(*stream).flow.Backlog)
		}) {
			t.Fatal("the credit did not arrive while the stream was full")
		}
		reading.Store(true)
		select {
		case err := <-sent:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Error("the sender waits although its stream has credit and room")
		}
		_ = s.Close(errors.New("the test is over"))
		_ = b.Close()
		<-s.Gone()
	})
}

// TestMessagesOfMixedSizes sends messages of 0 to 5 MB in both directions of several calls, of
// both sides, with windows, rooms and pauses that are drawn at random. All must arrive.
func TestMessagesOfMixedSizes(t *testing.T) {
	for seed := range uint64(needs.Rounds(15)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { mixed(t, seed) })
		})
	}
}

// A mixture is what one side of a call sends.
type mixture struct {
	sizes []int
	slow  bool // the receiver
	r     *rand.Rand
}

var mostNoise = sync.OnceValue(func() []byte { return noise(5 << 20) })

func newMixture(r *rand.Rand) (m mixture) {
	limit := []int{100, 10_000, 300_000, 1_000_000, 1_000_000}[r.IntN(5)]
	for range r.IntN(1 + min(10_000_000/limit, 300)) {
		m.sizes = append(m.sizes, r.IntN(limit))
	}
	if len(m.sizes) > 0 && r.IntN(4) > 0 { // the window grows
		m.sizes[0] = 3<<20 + r.IntN(2<<20)
	}
	m.slow, m.r = r.IntN(2) == 0, rand.New(rand.NewPCG(r.Uint64(), 0))
	return m
}

// sends sends the messages, and then last.
func (m *mixture) sends(st link.Stream, last *link.Frame) error {
	for i, n := range m.sizes {
		if err := st.Send(&link.Frame{Msg: message.Encoded(slice(mostNoise()[:n])), HasMsg: true}); err != nil {
			return fmt.Errorf("message %d of %d bytes: Send: %w", i, n, err)
		}
	}
	return st.Send(last)
}

func (m *mixture) receives(st link.Stream) error {
	for i, n := range m.sizes {
		if m.slow && m.r.IntN(4) == 0 {
			time.Sleep(time.Duration(m.r.IntN(20_000)) * time.Microsecond)
		}
		if b, err := receive(st, math.MaxInt); err != nil || !bytes.Equal(b, mostNoise()[:n]) {
			return fmt.Errorf("message %d of %d bytes: received %d: %w", i, n, len(b), err)
		}
	}
	return nil
}

// A conversation is what both sides of a call send.
type conversation struct {
	up, down mixture
	inTurn   bool // the caller receives once it has sent all, and the callee sends then
}

func (c *conversation) caller(st link.Stream) error {
	if c.inTurn {
		return cmp.Or(c.up.sends(st, &link.Frame{EndSend: true}), c.down.receives(st))
	}
	sent := make(chan error, 1)
	go func() { sent <- c.up.sends(st, &link.Frame{EndSend: true}) }()
	err := c.down.receives(st)
	return cmp.Or(<-sent, err)
}

func (c *conversation) callee(st link.Stream) error {
	end := &link.Frame{End: &link.End{}}
	if c.inTurn {
		return cmp.Or(c.up.receives(st), c.down.sends(st, end))
	}
	received := make(chan error, 1)
	go func() { received <- c.up.receives(st) }()
	for i, n := range c.down.sizes {
		if err := st.Send(&link.Frame{Msg: message.Encoded(slice(mostNoise()[:n])), HasMsg: true}); err != nil {
			return fmt.Errorf("message %d of %d bytes: Send: %w", i, n, err)
		}
	}
	return cmp.Or(<-received, st.Send(end))
}

// A talker accepts calls whose methods are the numbers of its conversations.
type talker struct {
	witness
	t             *testing.T
	conversations []conversation
	all           *sync.WaitGroup
}

func (c *talker) HandleStream(s link.Stream, o *link.CallHeader) error {
	var i int
	if _, err := fmt.Sscanf(o.Method, "/%d", &i); err != nil {
		return err
	}
	c.all.Go(func() {
		if err := c.conversations[i].callee(s); err != nil {
			c.t.Errorf("callee %d: %v", i, err)
		}
	})
	return nil
}

func mixed(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0))
	a, b := newLine(t, []int{1 << 10, 64 << 10, 200 << 10, 4 << 20}[r.IntN(4)], &delays{r: rand.New(rand.NewPCG(seed, 1))})
	optionsOf := func(client bool) Options {
		if r.IntN(2) == 0 { // those of package sock
			return Options{Client: client, Config: configured(client, func(c *options.Connections) {
				c.StreamWindow = 256 << 10
				c.MaxStreamWindow = 4 << 20
				c.ConnWindow = 2 << 20
			})}
		}
		return Options{Client: client, Config: configured(client, func(c *options.Connections) {
			c.StreamWindow = []int{wire.MinWindow, 100 << 10, 256 << 10}[r.IntN(3)]
			c.MaxStreamWindow = []int{wire.MinWindow, 4 << 20}[r.IntN(2)]
			c.ConnWindow = []int{wire.MinWindow, 1 << 20, 2 << 20}[r.IntN(3)]
			c.NoSpinning = r.IntN(2) == 0
		})}
	}
	client, server := optionsOf(true), optionsOf(false)
	client.Name, server.Name = "client", "server"
	cs, ss := newSession(a, client), newSession(b, server)
	if r.IntN(4) == 0 {
		cs, ss = newSession(veiled{a}, client), newSession(veiled{b}, server)
	}
	var callees, callers sync.WaitGroup
	calls, alone := 1+r.IntN(3), r.IntN(2) == 0
	if alone { // so that a sender that waits may be the connection's reader
		calls = 1
	}
	newTalker := func() *talker {
		c := &talker{t: t, all: &callees}
		for range calls {
			c.conversations = append(c.conversations, conversation{newMixture(r), newMixture(r), alone || r.IntN(2) == 0})
		}
		return c
	}
	sides := map[*Session]*talker{cs: newTalker()}
	ss.Start(sides[cs])
	if !alone && r.IntN(3) == 0 { // the server calls, too
		sides[ss] = newTalker()
		cs.Start(sides[ss])
	} else {
		cs.Start(nil)
	}
	watchdog := time.AfterFunc(time.Hour, func() {
		t.Errorf("nothing moves: client %s; server %s", stateOf(cs), stateOf(ss))
		_ = cs.Close(errors.New("nothing moves"))
		_ = ss.Close(errors.New("nothing moves"))
	})
	defer watchdog.Stop()
	for from, to := range sides {
		for i := range to.conversations {
			callers.Go(func() {
				st, err := from.NewStream(context.Background(), &link.CallHeader{Method: fmt.Sprintf("/%d", i), Profile: &link.Profile{}})
				if err == nil {
					err = to.conversations[i].caller(st)
				}
				if err == nil {
					if _, end := receive(st, math.MaxInt); end != io.EOF && end != link.ErrEnded { // it may have come with the last message
						err = fmt.Errorf("received %v, want the end", end)
					}
				}
				if err != nil {
					t.Errorf("caller %d: %v", i, err)
				}
			})
		}
	}
	callers.Wait()
	callees.Wait()
	_ = cs.Close(errors.New("the test is over"))
	<-cs.Gone()
	<-ss.Gone()
}

// stateOf lists the goroutines and calls that wait, with what they wait for.
func stateOf(s *Session) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b bytes.Buffer
	fmt.Fprintf(&b, "reader %d, caller %t, waiting %d, write lock %d, connection's credit %d out and %d in, %d taken, %d unread",
		s.roles.Reader, s.reading.caller != nil, s.roles.Waiting, s.roles.WriteLock, s.writing.connOut, s.connIn, s.taken, s.unread)
	for st := range s.live {
		fmt.Fprintf(&b, "; call %d: credit %d, backlog %d, full %t, queued %t, its sender reads %t; window %d, credit %d, taken %d, advance %d, %d items",
			st.id, st.flow.Credit, st.flow.Backlog, st.flow.Full(st.session.writing.backlog), st.queue != nil, s.reading.caller == &st.sender, st.in.flow.Window, st.in.flow.Credit, st.in.flow.Taken, st.in.flow.Advance, len(st.in.Items))
	}
	return b.String()
}
