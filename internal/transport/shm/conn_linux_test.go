package shm

import (
	"bytes"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/mux"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/testing/transporttest"
)

var (
	_ mux.Conn   = (*Conn)(nil)
	_ mux.Prompt = (*Conn)(nil)
)

// pattern returns n bytes that differ by position.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8) ^ byte(i>>16)
	}
	return b
}

func TestBytesArriveInOrderBothWaysAtOnce(t *testing.T) {
	data := pattern(8*ringSize + 12345)
	for name, prompt := range map[string]bool{"waiting": false, "asking first": true} {
		t.Run(name, func(t *testing.T) {
			client, server := connected(t)
			var all sync.WaitGroup
			for i, c := range []*Conn{client, server} {
				all.Go(func() {
					rnd := rand.New(rand.NewPCG(uint64(i), 1))
					for rest := data; len(rest) > 0; {
						n, most := 0, min(1+rnd.IntN(2*ringSize), len(rest))
						var err error
						if prompt && rnd.IntN(2) == 0 {
							half := most / 2
							n, err = c.TryWrite(rest[:half], rest[half:most])
						} else {
							n, err = c.Write(rest[:most])
							if n != most {
								t.Errorf("%d of %d bytes were written, %v", n, most, err)
							}
						}
						if err != nil {
							t.Error(err)
							return
						}
						rest = rest[n:]
					}
				})
				all.Go(func() {
					rnd := rand.New(rand.NewPCG(uint64(i), 2))
					b := make([]byte, ringSize)
					for rest := data; len(rest) > 0; {
						b := b[:1+rnd.IntN(len(b))]
						n := 0
						var err error
						if prompt {
							n, err = c.TryRead(b)
						}
						if n == 0 && err == nil {
							n, err = c.Read(b)
						}
						if err != nil || n == 0 || n > len(rest) || !bytes.Equal(b[:n], rest[:n]) {
							t.Errorf("%d bytes arrive, %v: not those that should, after %d", n, err, len(data)-len(rest))
							_ = c.Close() // unblocks the writer
							return
						}
						rest = rest[n:]
					}
				})
			}
			all.Wait()
		})
	}
}

func TestAListenersConnectionsAgreeOnSharedMemory(t *testing.T) {
	dir, err := os.MkdirTemp("", "shm")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	lis, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	near, err := net.Dial("unix", lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := lis.Accept()
	if err != nil {
		t.Fatal(err)
	}
	client, server := agree(t, near.(*net.UnixConn), far.(*net.UnixConn))
	defer client.Close()
	defer server.Close()
	if n, err := client.Write([]byte("hello")); n != 5 || err != nil {
		t.Fatal(n, err)
	}
	b := make([]byte, 8)
	if n, err := server.Read(b); string(b[:n]) != "hello" || err != nil {
		t.Fatal(n, err)
	}
}

// outcome is the result of a Read or a Write.
type outcome struct {
	n   int
	err error
}

func reads(c *Conn) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		n, err := c.Read(make([]byte, 100))
		done <- outcome{n, err}
	}()
	return done
}

func writes(c *Conn, n int) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		n, err := c.Write(make([]byte, n))
		done <- outcome{n, err}
	}()
	return done
}

// bothSides runs f with the client as c, and then with the server as c.
func bothSides(t *testing.T, f func(t *testing.T, c, peer *Conn)) {
	t.Run("client", func(t *testing.T) {
		client, server := connected(t)
		f(t, client, server)
	})
	t.Run("server", func(t *testing.T) {
		client, server := connected(t)
		f(t, server, client)
	})
}

func TestAReadThatWaitsIsWokenByAWrite(t *testing.T) {
	bothSides(t, func(t *testing.T, c, peer *Conn) {
		for range 100 {
			done := reads(c)
			sleeps(t, c)
			if n, err := peer.Write(make([]byte, 7)); n != 7 || err != nil {
				t.Fatal(n, err)
			}
			if got := soon(t, "Read", done); got.n != 7 || got.err != nil {
				t.Fatal(got)
			}
		}
	})
}

func TestCloseEndsAReadThatWaits(t *testing.T) {
	bothSides(t, func(t *testing.T, c, _ *Conn) {
		done := reads(c)
		sleeps(t, c)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if got := soon(t, "Read", done); got.n != 0 || !errors.Is(got.err, net.ErrClosed) {
			t.Error(got)
		}
		if err := c.Close(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("the second Close: %v", err)
		}
	})
}

func TestThePeersCloseEndsAReadThatWaits(t *testing.T) {
	bothSides(t, func(t *testing.T, c, peer *Conn) {
		done := reads(c)
		sleeps(t, c)
		_ = peer.Close()
		if got := soon(t, "Read", done); got.n != 0 || got.err != io.EOF {
			t.Error(got)
		}
	})
}

func TestWhatWasWrittenIsReadBeforeTheEnd(t *testing.T) {
	for name, end := range map[string]func(*Conn) error{"Close": (*Conn).Close, "CloseWrite": (*Conn).CloseWrite} {
		t.Run(name, func(t *testing.T) {
			bothSides(t, func(t *testing.T, c, peer *Conn) {
				data := pattern(ringSize)
				if n, err := peer.Write(data); n != len(data) || err != nil {
					t.Fatal(n, err)
				}
				if err := end(peer); err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(c)
				if err != nil || !bytes.Equal(got, data) {
					t.Errorf("%d of %d bytes arrive, %v", len(got), len(data), err)
				}
				if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
					t.Errorf("after the end: %d, %v", n, err)
				}
				if name == "Close" {
					return
				}
				// The other direction still works.
				if n, err := c.Write([]byte("still")); n != 5 || err != nil {
					t.Fatal(n, err)
				}
				b := make([]byte, 8)
				if n, err := peer.Read(b); string(b[:n]) != "still" || err != nil {
					t.Error(n, err)
				}
			})
		})
	}
}

// If a peer closes its end with an unread wake-up in the socket, the system reports a reset to
// this side.
func TestAnUnreadWakeUpIsNoErrorAtTheEnd(t *testing.T) {
	bothSides(t, func(t *testing.T, c, peer *Conn) {
		if sleeps, err := peer.in.startSleeping(); !sleeps || err != nil {
			t.Fatal(sleeps, err)
		}
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		peer.in.stopSleeping()
		if n, err := peer.TryRead(make([]byte, 2)); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if _, err := peer.Write([]byte("y")); err != nil {
			t.Fatal(err)
		}
		_ = peer.Close()
		if got, err := io.ReadAll(c); string(got) != "y" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
	})
}

func TestDeadlinesAsFarAsTheyCanBe(t *testing.T) {
	bothSides(t, func(t *testing.T, c, peer *Conn) {
		for _, far := range []time.Time{time.Now().Add(math.MaxInt64), time.Unix(1<<40, 0), time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)} {
			_ = c.SetReadDeadline(far)
			done := reads(c)
			sleeps(t, c)
			_, _ = peer.Write([]byte("abc"))
			if got := soon(t, "Read", done); got.n != 3 || got.err != nil {
				t.Errorf("before %v: %v", far, got)
			}
		}
		for _, past := range []time.Time{time.Now().Add(math.MinInt64), time.Unix(1, 0), time.Unix(-1<<40, 0), start} {
			_ = c.SetReadDeadline(past)
			if got := soon(t, "Read", reads(c)); !errors.Is(got.err, os.ErrDeadlineExceeded) {
				t.Errorf("after %v: %v", past, got)
			}
		}
	})
}

func TestADeadlineEndsAReadThatWaits(t *testing.T) {
	bothSides(t, func(t *testing.T, c, peer *Conn) {
		for _, before := range []bool{true, false} {
			late := time.Now().Add(-time.Second)
			if before {
				_ = c.SetReadDeadline(late)
			}
			done := reads(c)
			if !before {
				sleeps(t, c)
				_ = c.SetReadDeadline(late)
			}
			if got := soon(t, "Read", done); got.n != 0 || !errors.Is(got.err, os.ErrDeadlineExceeded) {
				t.Fatal(got)
			}
			// The deadline wins even if there are bytes, and they are not lost.
			_, _ = peer.Write([]byte("abc"))
			if got := soon(t, "Read", reads(c)); got.n != 0 || !errors.Is(got.err, os.ErrDeadlineExceeded) {
				t.Error(got)
			}
			if err := c.SetReadDeadline(time.Time{}); err != nil {
				t.Fatal(err)
			}
			if got := soon(t, "Read", reads(c)); got.n != 3 || got.err != nil {
				t.Error(got)
			}
			done = reads(c)
			sleeps(t, c)
			_, _ = peer.Write([]byte("abcd"))
			if got := soon(t, "Read", done); got.n != 4 || got.err != nil {
				t.Error(got)
			}
		}
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		if got := soon(t, "Read", reads(c)); got.n != 0 || !errors.Is(got.err, os.ErrDeadlineExceeded) {
			t.Error(got)
		}
	})
}

func TestAReadOfNothingReturns(t *testing.T) {
	bothSides(t, func(t *testing.T, c, peer *Conn) {
		_, _ = peer.Write([]byte("abc"))
		done := make(chan outcome, 1)
		go func() {
			n, err := c.Read(nil)
			done <- outcome{n, err}
		}()
		if got := soon(t, "Read", done); got != (outcome{}) {
			t.Error(got)
		}
	})
}

func TestAWriteThatWaitsForRoomGoesOn(t *testing.T) {
	bothSides(t, func(t *testing.T, c, peer *Conn) {
		for range 20 {
			done := writes(c, 2*ringSize)
			waits(t, c)
			if n, err := io.ReadFull(peer, make([]byte, 2*ringSize)); err != nil {
				t.Fatal(n, err)
			}
			if got := soon(t, "Write", done); got.n != 2*ringSize || got.err != nil {
				t.Fatal(got)
			}
		}
	})
}

func TestCloseEndsAWriteThatWaits(t *testing.T) {
	bothSides(t, func(t *testing.T, c, _ *Conn) {
		done := writes(c, 2*ringSize)
		waits(t, c)
		_ = c.Close()
		if got := soon(t, "Write", done); got.n != ringSize || !errors.Is(got.err, net.ErrClosed) {
			t.Error(got)
		}
	})
}

func TestThePeersCloseEndsAWriteThatWaits(t *testing.T) {
	bothSides(t, func(t *testing.T, c, peer *Conn) {
		done := writes(c, 2*ringSize)
		waits(t, c)
		_ = peer.Close()
		if got := soon(t, "Write", done); got.n != ringSize || got.err == nil || got.err == io.EOF {
			t.Error(got)
		}
	})
}

func TestTryWriteWritesWhatThereIsRoomFor(t *testing.T) {
	bothSides(t, func(t *testing.T, c, peer *Conn) {
		if n, err := c.TryRead(make([]byte, 10)); n != 0 || err != nil {
			t.Error(n, err)
		}
		data := pattern(ringSize + 1000)
		n, err := c.TryWrite(data[:100], nil, data[100:ringSize-1], data[ringSize-1:])
		if n != ringSize || err != nil {
			t.Error(n, err)
		}
		if n, err := c.TryWrite(data); n != 0 || err != nil {
			t.Error(n, err)
		}
		got := make([]byte, 2*ringSize)
		if n, err := peer.TryRead(got); n != ringSize || err != nil || !bytes.Equal(got[:n], data[:ringSize]) {
			t.Error(n, err)
		}
	})
}

func TestNothingWorksAfterClose(t *testing.T) {
	bothSides(t, func(t *testing.T, c, peer *Conn) {
		_, _ = peer.Write([]byte("unread"))
		_ = c.Close()
		b := make([]byte, 10)
		for name, f := range map[string]func() (int, error){
			"Read":     func() (int, error) { return c.Read(b) },
			"Write":    func() (int, error) { return c.Write(b) },
			"TryRead":  func() (int, error) { return c.TryRead(b) },
			"TryWrite": func() (int, error) { return c.TryWrite(b) },
		} {
			if n, err := f(); n != 0 || !errors.Is(err, net.ErrClosed) {
				t.Errorf("%s: %d, %v", name, n, err)
			}
		}
		if err := c.SetReadDeadline(time.Now()); !errors.Is(err, net.ErrClosed) {
			t.Errorf("SetReadDeadline: %v", err)
		}
	})
}

func TestAConnectionsPeerBreaksTheRules(t *testing.T) {
	bothSides(t, func(t *testing.T, c, peer *Conn) {
		done := reads(c)
		sleeps(t, c)
		peer.mine.word(atTail).Store(ringSize + 1)
		peer.data.wake()
		if got := soon(t, "Read", done); got.n != 0 || !errors.Is(got.err, errBroken) {
			t.Error(got)
		}
		if n, err := c.TryRead(make([]byte, 1)); n != 0 || !errors.Is(err, errBroken) {
			t.Error(n, err)
		}
		done = writes(c, 2*ringSize)
		waits(t, c)
		peer.mine.word(atHead).Store(ringSize + 1)
		peer.space.wake()
		if got := soon(t, "Write", done); got.n != ringSize || !errors.Is(got.err, errBroken) {
			t.Error(got)
		}
		if n, err := c.TryWrite(make([]byte, 1)); n != 0 || !errors.Is(err, errBroken) {
			t.Error(n, err)
		}
	})
}

// TestCloseAtAnyMoment crashes if unmapped memory is used.
func TestCloseAtAnyMoment(t *testing.T) {
	for seed := range uint64(40) {
		a, b := sockets(t)
		client, server := agree(t, a, b)
		var all sync.WaitGroup
		closes := make(chan struct{})
		for i, c := range []*Conn{client, server} {
			for j, f := range []func(rnd *rand.Rand, b []byte) (int, error){
				func(_ *rand.Rand, b []byte) (int, error) { return c.Read(b) },
				func(_ *rand.Rand, b []byte) (int, error) { return c.TryRead(b) },
				func(_ *rand.Rand, b []byte) (int, error) { return c.Write(b) },
				func(_ *rand.Rand, b []byte) (int, error) {
					return c.TryWrite(b[:len(b)/2], b[len(b)/2:])
				},
			} {
				all.Go(func() {
					rnd := rand.New(rand.NewPCG(seed, uint64(10*i+j)))
					b := make([]byte, ringSize)
					for {
						if _, err := f(rnd, b[:1+rnd.IntN(len(b)-1)]); err != nil {
							return
						}
					}
				})
			}
			all.Go(func() {
				<-closes
				_ = c.Close()
			})
		}
		rnd := rand.New(rand.NewPCG(seed, 99))
		for range rnd.IntN(3) { // a short pause
			_ = held(t)
		}
		close(closes)
		all.Wait()
	}
}

// A bubbled is one end of a connection of shared memory whose wakers are channels, as
// package synctest does not see waits for a socket. It is no [mux.Prompt], because time
// does not pass in a bubble while a session polls.
type bubbled struct {
	conn       *Conn
	peer       *bubbled
	data, room chan struct{} // wake-ups
	closed     chan struct{}
	once       sync.Once

	mu       sync.Mutex
	deadline time.Time
	moved    chan struct{} // closed when the deadline changes
}

func ring(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

func (b *bubbled) Read(p []byte) (int, error) {
	for over := false; ; {
		n, err := b.conn.TryRead(p)
		if n > 0 {
			ring(b.peer.room)
		}
		switch {
		case n > 0 || err != nil:
			return n, err
		case over:
			return 0, io.EOF
		}
		b.mu.Lock()
		deadline, moved := b.deadline, b.moved
		b.mu.Unlock()
		var late <-chan time.Time
		if !deadline.IsZero() {
			late = time.After(time.Until(deadline))
		}
		select {
		case <-b.data:
		case <-moved:
		case <-late:
			return 0, os.ErrDeadlineExceeded
		case <-b.closed:
			return 0, net.ErrClosed
		case <-b.peer.closed:
			over = true
		}
	}
}

func (b *bubbled) Write(p []byte) (n int, err error) {
	for {
		wrote, err := b.conn.TryWrite(p[n:])
		if n += wrote; wrote > 0 {
			ring(b.peer.data)
		}
		if err != nil || n == len(p) {
			return n, err
		}
		select {
		case <-b.room:
		case <-b.closed:
			return n, net.ErrClosed
		case <-b.peer.closed:
			return n, io.ErrClosedPipe
		}
	}
}

func (b *bubbled) SetReadDeadline(t time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.deadline = t
	close(b.moved)
	b.moved = make(chan struct{})
	return nil
}

func (b *bubbled) Close() error {
	b.once.Do(func() { close(b.closed) })
	return b.conn.Close()
}

func bubble(client, server *Conn) (a, b *bubbled) {
	all := [2]*bubbled{}
	for i, c := range []*Conn{client, server} {
		all[i] = &bubbled{
			conn: c, data: make(chan struct{}, 1), room: make(chan struct{}, 1),
			closed: make(chan struct{}), moved: make(chan struct{}),
		}
	}
	all[0].peer, all[1].peer = all[1], all[0]
	return all[0], all[1]
}

// sessions returns sessions over both ends of a connection.
func sessions(t testing.TB, a, b mux.Conn, acceptor link.Acceptor) (client, server *mux.Session) {
	t.Helper()
	config := &options.NewServer(nil).Connections
	config.StreamWindow, config.MaxStreamWindow = 64<<10, 64<<10
	client, server = mux.New(a, mux.Options{Config: config, HelloTime: time.Minute, Name: "client", Client: true}), mux.New(b, mux.Options{Config: config, HelloTime: time.Minute, Name: "server"})
	server.Start(acceptor)
	client.Start(nil)
	t.Cleanup(func() {
		_ = client.Close(errors.New("the test is over"))
		<-client.Gone()
		<-server.Gone()
	})
	if err := client.Meet(t.Context()); err != nil {
		t.Fatal(err)
	}
	return client, server
}

// TestStreams runs over the rings alone. Messages in slabs use no credit, and the suite's
// senders need to use it up.
func TestStreams(t *testing.T) {
	transporttest.Suite{
		Connect: func(t *testing.T, deadline time.Time) (caller, callee link.Stream) {
			a, b := bubble(connected(t))
			accepted := make(transporttest.Accepter, 1)
			cs, _ := sessions(t, a, b, accepted)
			caller, err := cs.NewStream(t.Context(), &link.CallHeader{Method: "/a/b", Profile: &link.Profile{}, Deadline: deadline})
			if err != nil {
				t.Fatal(err)
			}
			return caller, <-accepted
		},
		Window: 64 << 10,
		Codec:  codec.Proto(),
	}.Run(t)
}
