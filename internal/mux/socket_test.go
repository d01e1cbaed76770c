package mux

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/mux/waits"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/testing/needs"
	"github.com/nearcall/nearcall/internal/wire"
)

// Over sockets callers read, and tests cannot use synctest.

// soon waits until is returns true, and fails after ten seconds.
func soon(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !is(); {
		if time.Now().After(end) {
			t.Fatalf("it does not come true that %s", what)
		}
		runtime.Gosched()
		time.Sleep(20 * time.Microsecond)
	}
}

// holds calls is with s.mu held.
func holds(s *Session, is func() bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return is()
}

// ends returns both ends of a connection.
func ends(t testing.TB, network string) (client, server net.Conn) {
	t.Helper()
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
	if client, err = net.Dial(network, lis.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = lis.Accept(); err != nil {
		t.Fatal(err)
	}
	return client, server
}

// eachNetwork runs f as a subtest for each kind of socket, and checks for leaked
// goroutines.
func eachNetwork(t *testing.T, f func(t *testing.T, network string)) {
	for _, network := range []string{"unix", "tcp"} {
		t.Run(network, func(t *testing.T) {
			t.Cleanup(func() {
				leak.Finally(t, "no goroutine is left", func() bool { return len(leak.Find()) == 0 })
			})
			f(t, network)
		})
	}
}

// sockets is pair over a socket.
func sockets(t testing.TB, network string, client, server Options, acceptor link.Acceptor) (*Session, *Session) {
	t.Helper()
	a, b := ends(t, network)
	return startBoth(t, a, b, client, server, acceptor)
}

// parked waits until a caller reads and is parked in Read, or sleeps.
func parked(t testing.TB, s *Session) {
	t.Helper()
	soon(t, "a caller waits for the peer", func() bool {
		return holds(s, func() bool { return s.roles.Parked || s.roles.Waiting > 0 })
	})
}

// makesAndReads makes a call that is never answered, whose caller reads and is parked in Read.
// If the read loop still reads, the caller sleeps instead: then makesAndReads tries again,
// after a call that is answered, because the read loop retires after a read.
func makesAndReads(t *testing.T, s *Session) <-chan made {
	t.Helper()
	for {
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		out := makes(ctx, s, "/never", 1, 1)
		parked(t, s)
		if holds(s, func() bool { return s.roles.Parked }) {
			return out
		}
		cancel()
		<-out
		<-makes(t.Context(), s, "/echo", 1, 1)
	}
}

// needsReadingCallers skips a test of callers that read on systems without nonblocking reads, such
// as Windows.
func needsReadingCallers(t *testing.T, s *Session) {
	t.Helper()
	if s.raw == nil {
		t.Skip("the system has no read of a socket that does not wait: the read loop reads for all")
	}
}

// A waiter accepts calls and answers them by method:
//
//	/echo   with the request
//	/large  with the number of bytes that the request says
//	/two    with two replies
//	/never  never
//	/later  with the request, once release is closed
type waiter struct {
	release chan struct{}
	witness
}

func (w *waiter) HandleStream(s link.Stream, o *link.CallHeader) error {
	go func() {
		request, err := receive(s, 10<<20)
		if err != nil {
			return
		}
		f := &link.Frame{Header: metadata.MD{"k": {"v"}}, HasMsg: true, End: &link.End{Trailer: metadata.MD{"t": {"v"}}}}
		switch o.Method {
		case "/large":
			f.Msg = message.Encoded(slice(noise(int(binary.LittleEndian.Uint32(request)))))
		case "/two":
			_ = s.Send(&link.Frame{Msg: ofBytes(1), HasMsg: true})
			f.Header, f.Msg = nil, ofBytes(1)
		case "/never":
			return
		case "/later":
			<-w.release
			fallthrough
		default:
			f.Msg = message.Encoded(slice(request))
		}
		_ = s.Send(f)
	}()
	return nil
}

// asks makes a call and returns its reply.
func asks(ctx context.Context, s *Session, method string, request []byte, limit int) ([]byte, error) {
	c, reply := unary(method, 0, limit)
	m := message.Encoded(slice(request))
	c.Request = &m
	if err := s.Invoke(ctx, c); err != nil {
		return nil, err
	}
	if c.ReplyError != nil || !c.Replied || len(c.Trailer) != 1 || c.Status != nil {
		return nil, fmt.Errorf("%+v", c)
	}
	return *reply, nil
}

// echoes makes a call whose reply must equal the request.
func echoes(t testing.TB, s *Session, request []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	got, err := asks(ctx, s, "/echo", request, len(request))
	if err != nil || !bytes.Equal(got, request) {
		t.Errorf("%d bytes, %v; want %d", len(got), err, len(request))
	}
}

// left checks that the sessions have no calls left.
func left(t testing.TB, sessions ...*Session) {
	t.Helper()
	for _, s := range sessions {
		soon(t, "the session is empty", func() bool {
			return holds(s, func() bool {
				return len(s.streams) == 0 && len(s.live) == 0 && s.calls == 0 && s.roles.Waiting == 0 && s.reading.caller == nil &&
					s.ownCalls == 0 && s.writing.ready.first == nil && s.writing.starved.first == nil && s.roles.WriteLock == waits.Free
			})
		})
	}
}

func TestCallsOverSockets(t *testing.T) {
	eachNetwork(t, func(t *testing.T, network string) {
		for _, callers := range []int{1, 2, 64} {
			for name, request := range map[string][]byte{"empty": nil, "small": noise(100), "larger": noise(20_000), "of many frames": noise(300_000)} {
				t.Run(fmt.Sprintf("%d callers, %s", callers, name), func(t *testing.T) {
					cs, ss := sockets(t, network, Options{}, Options{}, &waiter{})
					var all sync.WaitGroup
					for range callers {
						all.Go(func() {
							for range 1 + 200/callers/(1+len(request)/1000) {
								echoes(t, cs, request)
							}
						})
					}
					all.Wait()
					left(t, cs, ss)
				})
			}
		}
	})
}

// TestCallsThatAreLeftOverSockets cancels calls at any moment. Each must return and
// leave nothing behind.
func TestCallsThatAreLeftOverSockets(t *testing.T) {
	eachNetwork(t, func(t *testing.T, network string) {
		for _, callers := range []int{1, 2, 64} {
			t.Run(fmt.Sprint(callers), func(t *testing.T) {
				cs, ss := sockets(t, network, Options{}, Options{}, &waiter{})
				var all sync.WaitGroup
				for i := range callers {
					all.Go(func() {
						r := rand.New(rand.NewPCG(1, uint64(i)))
						for range 1 + 400/callers {
							ctx, cancel := context.WithCancel(t.Context())
							if r.IntN(2) == 0 {
								cancel()
								ctx, cancel = context.WithTimeout(t.Context(), time.Duration(r.IntN(300))*time.Microsecond)
							} else {
								time.AfterFunc(time.Duration(r.IntN(300))*time.Microsecond, cancel)
							}
							method := []string{"/echo", "/never"}[r.IntN(2)]
							request := noise(r.IntN([]int{1, 1000, 100_000}[r.IntN(3)]) + 1)
							got, err := asks(ctx, cs, method, request, len(request))
							if err == nil && (method == "/never" || !bytes.Equal(got, request)) || err != nil && err != ctx.Err() {
								t.Errorf("%s: %d bytes, %v", method, len(got), err)
							}
							cancel()
							if r.IntN(3) == 0 {
								echoes(t, cs, request)
							}
						}
					})
				}
				all.Wait()
				echoes(t, cs, noise(100))
				left(t, cs, ss)
			})
		}
	})
}

// TestAReadingCallerThatLeavesLeavesNoDeadline checks that a cancelled reading caller leaves no
// deadline that interrupts the next reader.
func TestAReadingCallerThatLeavesLeavesNoDeadline(t *testing.T) {
	eachNetwork(t, func(t *testing.T, network string) {
		cs, ss := sockets(t, network, Options{}, Options{}, &waiter{})
		for i := range 1000 {
			ctx, cancel := context.WithCancel(t.Context())
			out := makes(ctx, cs, "/never", 10, 10)
			if i%2 == 0 {
				parked(t, cs)
			}
			cancel()
			if got := <-out; got.err != context.Canceled {
				t.Fatal(got.err)
			}
			echoes(t, cs, []byte("next"))
			if t.Failed() {
				return
			}
		}
		left(t, cs, ss)
	})
}

// TestAReadingCallerThatLeavesOthers checks that the read loop reads for the remaining callers.
func TestAReadingCallerThatLeavesOthers(t *testing.T) {
	eachNetwork(t, func(t *testing.T, network string) {
		cs, ss := sockets(t, network, Options{}, Options{}, &waiter{})
		needsReadingCallers(t, cs)
		for range 5 {
			soon(t, "nobody reads", func() bool {
				echoes(t, cs, noise(10))
				return holds(cs, func() bool { return cs.roles.Reader == waits.Nobody })
			})
			ctx, cancel := context.WithCancel(t.Context())
			caller := makes(ctx, cs, "/never", 1, 1)
			parked(t, cs)
			others, cancelOthers := context.WithCancel(t.Context())
			other := makes(others, cs, "/never", 1, 1)
			soon(t, "another waits", func() bool {
				return holds(cs, func() bool { return cs.roles.Waiting == 1 || cs.reading.caller == nil })
			})
			cancel()
			<-caller
			if holds(cs, func() bool { return cs.roles.Waiting > 0 && cs.roles.Reader == waits.Nobody }) {
				t.Fatal("nobody reads for those who wait")
			}
			cancelOthers()
			<-other
		}
		left(t, cs, ss)
	})
}

func TestRepliesOverSockets(t *testing.T) {
	eachNetwork(t, func(t *testing.T, network string) {
		cs, ss := sockets(t, network, Options{}, Options{}, &waiter{})
		const size = 5 << 20
		request := binary.LittleEndian.AppendUint32(nil, size)
		var all sync.WaitGroup
		for range 3 { // first alone, then next to other calls
			if got, err := asks(t.Context(), cs, "/large", request, size); err != nil || !bytes.Equal(got, noise(size)) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			var refused *message.RecvError
			if _, err := asks(t.Context(), cs, "/large", request, size-1); !errors.As(err, &refused) || refused.Size != size {
				t.Errorf("%v", err)
			}
			if _, err := asks(t.Context(), cs, "/two", request, 10); !errors.Is(err, link.ErrReplies) {
				t.Errorf("%v", err)
			}
			echoes(t, cs, request)
			all.Go(func() {
				for range 50 {
					echoes(t, cs, noise(1000))
				}
			})
		}
		all.Wait()
		left(t, cs, ss)
	})
}

// TestAnEndWhileCallsWait checks that waiting callers learn of the session's end at
// once.
func TestAnEndWhileCallsWait(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(cs, ss *Session)
		want string // empty if the calls succeed
		slow bool
	}{
		"close":              {func(cs, _ *Session) { _ = cs.Close(errors.New("enough")) }, "enough", false},
		"close of the peer":  {func(_, ss *Session) { _ = ss.Close(errors.New("enough")) }, "enough", false},
		"broken connection":  {func(cs, _ *Session) { _ = cs.conn.Close() }, "use of closed", false},
		"death of the peer":  {func(_, ss *Session) { _ = ss.conn.Close() }, "", false},
		"no way to the peer": {func(cs, _ *Session) { cs.onWriteError(errDeaf) }, "nobody reads", true},
		"drain":              {func(cs, _ *Session) { cs.Retire() }, "", false},
		"drain of the peer":  {func(_, ss *Session) { ss.Drain() }, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			eachNetwork(t, func(t *testing.T, network string) {
				for _, callers := range []int{1, 10} {
					for _, when := range []string{"parked", "at any moment"} {
						if c.slow && (when != "parked" || network == "tcp") {
							continue
						}
						t.Run(fmt.Sprint(callers, " ", when), func(t *testing.T) {
							w := &waiter{release: make(chan struct{})}
							cs, ss := sockets(t, network, Options{}, Options{}, w)
							var all []<-chan made
							for range callers {
								all = append(all, makes(context.Background(), cs, "/later", 10, 10))
							}
							soon(t, "the calls have arrived", func() bool {
								return holds(ss, func() bool { return int(ss.calls) == callers })
							})
							if when == "parked" {
								parked(t, cs)
							}
							c.end(cs, ss)
							if strings.HasPrefix(name, "drain") {
								soon(t, "no more calls are made", func() bool { return link.IsClosed(cs.Done()) })
								if got := <-makes(t.Context(), cs, "/echo", 1, 1); !errors.Is(got.err, link.ErrUnprocessed) {
									t.Errorf("a call ends with %v", got.err)
								}
								close(w.release)
							} else {
								defer close(w.release)
							}
							for _, out := range all {
								select {
								case got := <-out:
									switch {
									case strings.HasPrefix(name, "drain"):
										if got.err != nil || len(got.reply) != 10 {
											t.Errorf("a call ends with %d bytes, %v", len(got.reply), got.err)
										}
									case got.err == nil:
										t.Error("a call ends well")
									default:
										says(t, got.err, c.want)
									}
								case <-time.After(10 * time.Second):
									t.Fatal("a call does not end")
								}
							}
							if holds(cs, func() bool { return cs.life.Reason() != nil && cs.roles.Reader == waits.Nobody }) {
								t.Error("nobody sees the peer's end")
							}
							for _, s := range []*Session{cs, ss} { // drained sessions end without Close
								select {
								case <-s.Gone():
								case <-time.After(10 * time.Second):
									t.Fatal("a session is not gone")
								}
							}
							empty(t, cs)
							if cs.roles.Waiting != 0 || cs.reading.caller != nil {
								t.Errorf("%d wait", cs.roles.Waiting)
							}
						})
					}
				}
			})
		})
	}
}

// TestWhatComesWhileNobodyReads checks that frames are read while no call is open.
func TestWhatComesWhileNobodyReads(t *testing.T) {
	eachNetwork(t, func(t *testing.T, network string) {
		cs, ss := sockets(t, network, Options{}, Options{}, &waiter{})
		needsReadingCallers(t, cs)
		for range 20 {
			soon(t, "nobody reads", func() bool {
				echoes(t, cs, noise(10))
				return holds(cs, func() bool { return cs.roles.Reader == waits.Nobody })
			})
			ss.mu.Lock()
			before := ss.silent.reads
			ss.writing.control = wire.AppendPing(ss.writing.control, wire.KindPing, [8]byte{1})
			ss.flushLocked(false)
			ss.mu.Unlock()
			soon(t, "the ping is answered", func() bool { return holds(ss, func() bool { return ss.silent.reads > before }) })
		}
		echoes(t, cs, noise(10))
		ss.Drain()
		soon(t, "the client knows of the drain", func() bool { return link.IsClosed(cs.Done()) })
		<-cs.Gone()
		<-ss.Gone()
	})
}

// TestAStreamThatNobodyReadsBesideOthers checks that a stream which is not read blocks
// neither calls nor other streams.
func TestAStreamThatNobodyReadsBesideOthers(t *testing.T) {
	eachNetwork(t, func(t *testing.T, network string) {
		flooding := make(chan struct{})
		cs, ss := sockets(t, network, Options{}, Options{}, accepter(func(s link.Stream, o *link.CallHeader) {
			if o.Method != "/flood" {
				answer(s)
				return
			}
			for i := 0; s.Send(&link.Frame{Msg: ofBytes(10_000), HasMsg: true}) == nil; i++ {
				if i == 5 {
					close(flooding)
				}
			}
		}))
		open := func(method string) link.Stream {
			st, err := cs.NewStream(t.Context(), &link.CallHeader{Method: method, Profile: &link.Profile{}})
			if err != nil {
				t.Fatal(err)
			}
			return st
		}
		flood := open("/flood")
		<-flooding
		var all sync.WaitGroup
		for range 8 {
			st := open("/x/y")
			all.Go(func() {
				for i := range 100 {
					send(t, st, noise(100*i))
					wants(t, st, make([]byte, 100*i))
				}
				st.Abort(context.Canceled)
			})
			all.Go(func() {
				for range 20 {
					c, reply := unary("/x/y", 3000, 3000)
					if err := cs.Invoke(t.Context(), c); err != nil || len(*reply) != 3000 {
						t.Errorf("%d bytes, %v", len(*reply), err)
					}
				}
			})
		}
		all.Wait()
		for range 50 {
			wants(t, flood, make([]byte, 10_000))
		}
		flood.Abort(context.Canceled)
		left(t, cs, ss)
	})
}

// accepter calls a function for each call.
type accepter func(s link.Stream, o *link.CallHeader)

func (accepter) HandleUnary(*link.UnaryCall, bool) error { return link.ErrNoCall }
func (accepter) Terms() link.Terms                       { return link.Terms{} }
func (accepter) Closed(error)                            {}
func (accepter) Gone()                                   {}

func (a accepter) HandleStream(s link.Stream, o *link.CallHeader) error {
	go a(s, o)
	return nil
}

// slow returns a session whose peer has huge windows. The peer reads, and ends calls,
// only after read is called.
func slow(t *testing.T, network string) (s *Session, read func()) {
	mine, peers := ends(t, network)
	s = newSession(mine, Options{Client: true, Name: "peer"})
	s.Start(nil)
	if _, err := peers.Write(wire.AppendHello([]byte(wire.Magic), &wire.Hello{Version: 1, Stream: 1 << 30, Connection: 1 << 40, Block: wire.MinBlock})); err != nil {
		t.Fatal(err)
	}
	if err := s.Meet(t.Context()); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	started := false
	t.Cleanup(func() {
		_ = s.Close(errors.New("the test is over"))
		if !started {
			_ = peers.Close()
			close(done)
		}
		<-s.Gone()
		<-done
		_ = peers.Close()
	})
	return s, func() {
		started = true
		go func() {
			defer close(done)
			b, buf := []byte(nil), make([]byte, 1<<16)
			for {
				n, err := peers.Read(buf)
				b = append(b, buf[:n]...)
				if err != nil {
					if err != io.EOF {
						t.Error(err)
					}
					_ = peers.Close()
					return
				}
				b, _ = bytes.CutPrefix(b, []byte(wire.Magic))
				var out []byte
				for {
					f, n, err := wire.Next(b)
					if err != nil {
						t.Error(err)
					}
					if n == 0 {
						break
					}
					b = b[n:]
					if f.Kind.Stream() && f.Kind&wire.FlagEnd != 0 {
						var e wire.Encoder
						out, _ = e.Append(out, &wire.Step{Stream: f.Stream, End: &link.End{}}, 0)
					}
				}
				b = slices.Clone(b)
				if _, err := peers.Write(out); err != nil && !link.IsClosed(s.Ended()) {
					t.Error(err)
				}
			}
		}()
	}
}

// TestAPeerThatDoesNotReadItsSocket checks that callers can leave at once and leave
// nothing behind, and that calls continue once the peer reads again.
func TestAPeerThatDoesNotReadItsSocket(t *testing.T) {
	eachNetwork(t, func(t *testing.T, network string) {
		s, read := slow(t, network)
		ctx, cancel := context.WithCancel(t.Context())
		var all []<-chan made
		stuck := func() bool {
			return holds(s, func() bool { return s.roles.WriteLock == waits.Taken && s.hasQueuedLocked() })
		}
		more := func() { all = append(all, makes(ctx, s, "/a/b", []int{100, 7000, 200_000}[len(all)%3], 10)) }
		for range 20 {
			more()
		}
		soon(t, "the socket fills up", func() bool {
			if len(all) < 2000 {
				more()
			}
			return stuck()
		})
		for range 500 {
			all = append(all, makes(ctx, s, "/a/b", 100, 10))
		}
		began := time.Now()
		cancel()
		for _, out := range all {
			if got := <-out; got.err != context.Canceled {
				t.Errorf("a call ends with %v", got.err)
			}
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("they took %v to leave", took)
		}
		s.mu.Lock()
		if len(s.writing.control) > 100<<10 || len(s.live) > 0 || s.writing.ready.first != nil || s.roles.Waiting > 0 {
			t.Errorf("%d bytes wait, %v, %v; %d wait", len(s.writing.control), s.live, s.writing.ready.first, s.roles.Waiting)
		}
		s.mu.Unlock()
		short, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		if got := <-makes(short, s, "/a/b", 100, 10); got.err != context.DeadlineExceeded {
			t.Errorf("a call ends with %v", got.err)
		}
		patient := makes(t.Context(), s, "/a/b", 100, 10)
		read()
		for _, out := range []<-chan made{patient, makes(t.Context(), s, "/a/b", 100_000, 10), makes(t.Context(), s, "/a/b", 1, 10)} {
			if got := <-out; got.err != nil || got.call.Replied {
				t.Errorf("a call ends with %v", got.err)
			}
		}
		soon(t, "all is written", func() bool {
			return holds(s, func() bool {
				return s.roles.WriteLock == waits.Free && !s.hasQueuedLocked() && s.writing.batch.b == nil && len(s.writing.batch.spent) == 0
			})
		})
		empty(t, s)
	})
}

// TestCloseOfAFullSocket checks that a session with a full socket ends after CloseTimeout.
func TestCloseOfAFullSocket(t *testing.T) {
	eachNetwork(t, func(t *testing.T, network string) {
		mine, peers := ends(t, network)
		s := newSession(mine, Options{Client: true, CloseTimeout: 20 * time.Millisecond})
		s.Start(nil)
		if _, err := peers.Write(wire.AppendHello([]byte(wire.Magic), &wire.Hello{Version: 1, Stream: 1 << 30, Connection: 1 << 40, Block: wire.MinBlock})); err != nil {
			t.Fatal(err)
		}
		out := makes(t.Context(), s, "/a/b", 16<<20, 10)
		soon(t, "it is being written", func() bool {
			return holds(s, func() bool { return s.roles.WriteLock == waits.Taken && s.lastOwn == 1 })
		})
		_ = s.Close(errors.New("enough"))
		if got := <-out; got.err == nil {
			t.Error("the call ends well")
		}
		<-s.Gone()
		empty(t, s)
		_ = peers.Close()
	})
}

// TestAPlaceIsWaitedForWithSomebodyReading checks that the read loop reads while the
// only caller waits for a slot.
func TestAPlaceIsWaitedForWithSomebodyReading(t *testing.T) {
	eachNetwork(t, func(t *testing.T, network string) {
		release := make(chan struct{})
		cs, _ := sockets(t, network, Options{}, Options{Config: configured(false, func(c *options.Connections) { c.MaxStreams = 1 })}, accepter(func(s link.Stream, o *link.CallHeader) {
			if o.Method == "/first" {
				<-release
			}
			_ = s.Send(&link.Frame{End: &link.End{}})
		}))
		if _, err := cs.NewStream(t.Context(), &link.CallHeader{Method: "/first", Profile: &link.Profile{}}); err != nil {
			t.Fatal(err)
		}
		out := makes(t.Context(), cs, "/second", 1, 1)
		soon(t, "it waits, and somebody reads", func() bool {
			return holds(cs, func() bool {
				return cs.writing.held.first != nil && (cs.roles.Waiting == 1 && cs.roles.Reader == waits.ReadLoop || cs.roles.Reader == waits.Caller)
			})
		})
		close(release)
		if got := <-out; got.err != nil {
			t.Error(got.err)
		}
	})
}

// A dated conn remembers its last read deadline.
type dated struct {
	net.Conn
	Prompt
	last atomic.Pointer[time.Time]
}

func (d *dated) SetReadDeadline(t time.Time) error {
	d.last.Store(&t)
	return d.Conn.SetReadDeadline(t)
}

// TestAWriteErrorAsAReadingCallerIsWoken checks that a write error does not undo the
// deadline that interrupts the reading caller's Read.
func TestAWriteErrorAsAReadingCallerIsWoken(t *testing.T) {
	eachNetwork(t, func(t *testing.T, network string) {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // the reading caller must not run before the write error
		for range 5 {
			a, b := ends(t, network)
			raw := PromptOf(a)
			if raw == nil {
				t.Skip("the system has no leaders")
			}
			d := &dated{Conn: a, Prompt: raw}
			cs, _ := startBoth(t, d, b, Options{}, Options{}, &waiter{})
			out := makesAndReads(t, cs)
			var after callbacks
			cs.mu.Lock()
			for st := range cs.live {
				st.abortLocked(context.Canceled, false, &after)
			}
			cs.mu.Unlock()
			cs.onWriteError(errDeaf)
			if holds(cs, func() bool { return cs.roles.Interrupted && !d.last.Load().Equal(longAgo) }) {
				t.Error("the deadline that interrupts the reading caller is gone")
			}
			after.run()
			if got := <-out; got.err != context.Canceled {
				t.Error(got.err)
			}
			_ = cs.Close(errors.New("enough"))
		}
	})
}
