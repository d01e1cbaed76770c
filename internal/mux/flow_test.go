package mux

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	_ "google.golang.org/grpc/encoding/gzip" // registers gzip
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/encoded"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/mux/waits"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/testing/needs"
	"github.com/nearcall/nearcall/internal/testing/transporttest"
	"github.com/nearcall/nearcall/internal/wire"
)

// call opens a call from cs and returns both sides of it.
func call(t *testing.T, cs *Session, accepted transporttest.Accepter, encoding string) (caller, callee *stream) {
	t.Helper()
	st, err := cs.NewStream(t.Context(), &link.CallHeader{Method: "/a/b", Profile: &link.Profile{Encoding: encoding}})
	if err != nil {
		t.Fatal(err)
	}
	return st.(*stream), (<-accepted).(*stream)
}

func send(t *testing.T, st link.Stream, b []byte) {
	t.Helper()
	if err := st.Send(&link.Frame{Msg: message.Encoded(mem.BufferSlice{mem.SliceBuffer(b)}), HasMsg: true}); err != nil {
		t.Fatal(err)
	}
}

// receive returns the next message, or the error instead of one.
func receive(st link.Stream, limit int) (b []byte, err error) {
	f := &link.Frame{Sink: message.Sink{Dst: &b, Codec: rawCodec, Limit: limit}}
	for err == nil && !f.Got {
		if err = st.Recv(f); err == nil && f.End != nil && !f.Got {
			return nil, io.EOF
		}
	}
	return b, err
}

func wants(t *testing.T, st link.Stream, want []byte) {
	t.Helper()
	if b, err := receive(st, math.MaxInt); err != nil || !bytes.Equal(b, want) {
		t.Fatalf("received %d bytes and %v, want %d bytes", len(b), err, len(want))
	}
}

// noise returns n bytes that do not compress.
func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

// even checks that no bytes are in flight, and that both sides of the connection and of
// the calls agree on credit: one side may send what the other expects, and what is
// missing from the window will be returned.
func even(t *testing.T, a, b *Session, calls ...[2]*stream) {
	t.Helper()
	synctest.Wait()
	for _, s := range [][2]*Session{{a, b}, {b, a}} {
		if out, in := s[0].writing.connOut, s[1].connIn; out != int64(in) || in+s[1].taken != s[1].opts.Config.ConnWindow {
			t.Errorf("the connection's credit is %d, %d is expected, %d is owed", out, in, s[1].taken)
		}
	}
	for _, c := range calls {
		for _, st := range [][2]*stream{{c[0], c[1]}, {c[1], c[0]}} {
			from, in := st[0], &st[1].in
			if from.flow.Credit != int64(in.flow.Credit) || in.flow.Credit+in.flow.Taken != in.flow.Window || in.flow.Advance != 0 || in.Skip != 0 || from.flow.Backlog != 0 {
				t.Errorf("a call's credit is %d, %d is expected, %d is owed, of a window of %d, backlog %d, advance %d, skip %d",
					from.flow.Credit, in.flow.Credit, in.flow.Taken, in.flow.Window, from.flow.Backlog, in.flow.Advance, in.Skip)
			}
		}
	}
}

// TestAWindowThatHasGrown checks that credit is still returned in time after a window
// has grown.
func TestAWindowThatHasGrown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		accepted := make(transporttest.Accepter, 1)
		o := Options{Config: configured(false, func(c *options.Connections) { c.MaxStreamWindow = 4 << 20 })}
		cs, ss := pair(t, o, o, accepted)
		caller, callee := call(t, cs, accepted, "")
		r := rand.New(rand.NewPCG(1, 1))
		sizes := []int{1 << 20, 400 << 10, 1, 3 << 20, 1 << 20, 100}
		for range 100 {
			sizes = append(sizes, r.IntN(1<<r.IntN(23)))
		}
		for _, st := range [][2]*stream{{caller, callee}, {callee, caller}} {
			var sender sync.WaitGroup
			sender.Go(func() {
				for _, n := range sizes {
					send(t, st[0], make([]byte, n))
				}
			})
			for _, n := range sizes {
				wants(t, st[1], make([]byte, n))
			}
			sender.Wait()
			if w := st[1].in.flow.Window; w <= wire.MinWindow || w > o.Config.MaxStreamWindow {
				t.Errorf("the window is %d", w)
			}
		}
		even(t, cs, ss, [2]*stream{caller, callee})
	})
}

func TestAMessageLargerThanBothWindows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		accepted := make(transporttest.Accepter, 1)
		cs, ss := pair(t, Options{Config: configured(false, func(c *options.Connections) { c.ConnWindow = wire.MinWindow })}, Options{Config: configured(false, func(c *options.Connections) { c.ConnWindow = wire.MinWindow })}, accepted)
		caller, callee := call(t, cs, accepted, "")
		want := noise(5 << 20)
		for _, st := range [][2]*stream{{caller, callee}, {callee, caller}} {
			send(t, st[0], want)
			synctest.Wait() // the receiver starts when the window is full
			wants(t, st[1], want)
			done := make(chan struct{})
			go func() { // the receiver starts before that
				defer close(done)
				wants(t, st[1], want)
			}()
			synctest.Wait()
			send(t, st[0], want)
			<-done
		}
		even(t, cs, ss, [2]*stream{caller, callee})
	})
}

func TestACallThatNobodyReadsStopsItselfAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		accepted := make(transporttest.Accepter, 1)
		cs, ss := pair(t, Options{}, Options{Config: configured(false, func(c *options.Connections) { c.ConnWindow = wire.MinWindow })}, accepted)
		var stuck sync.WaitGroup
		var all [][2]*stream
		for range 5 {
			caller, callee := call(t, cs, accepted, "")
			all = append(all, [2]*stream{caller, callee})
			stuck.Go(func() {
				f := &link.Frame{Msg: ofBytes(10_000), HasMsg: true}
				for range 20 {
					if err := caller.Send(f); err != nil {
						t.Error(err)
					}
				}
			})
		}
		synctest.Wait()
		caller, callee := call(t, cs, accepted, "")
		for range 100 {
			send(t, caller, noise(20_000))
			wants(t, callee, noise(20_000))
		}
		for _, c := range all {
			for range 20 {
				wants(t, c[1], make([]byte, 10_000))
			}
		}
		stuck.Wait()
		even(t, cs, ss, append(all, [2]*stream{caller, callee})...)
	})
}

func TestARefusedMessageIsSkipped(t *testing.T) {
	for name, before := range map[string]func(t *testing.T, callee *stream){
		"at once": func(*testing.T, *stream) {},
		"after credit was given for it": func(t *testing.T, callee *stream) {
			// As if a receiver had waited for the whole message, and left before the
			// rest arrived.
			s := callee.session
			s.mu.Lock()
			defer s.mu.Unlock()
			short := callee.in.Last().Missing - callee.in.flow.Credit
			callee.in.flow.Advance += short
			callee.grantCreditLocked(short)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				accepted := make(transporttest.Accepter, 1)
				cs, ss := pair(t, Options{}, Options{}, accepted)
				caller, callee := call(t, cs, accepted, "")
				for range 3 {
					for _, size := range []int{101, 3000, 100_000, 1 << 20} {
						sent := make(chan struct{})
						go func() {
							defer close(sent)
							send(t, caller, make([]byte, size))
							send(t, caller, []byte("next"))
						}()
						synctest.Wait()
						if size > waits.Granted(wire.MinWindow) {
							before(t, callee)
						}
						var refused *message.RecvError
						if _, err := receive(callee, 100); !errors.As(err, &refused) || refused.Size != size || refused.Limit != 100 {
							t.Fatalf("Recv returns %v", err)
						}
						wants(t, callee, []byte("next"))
						<-sent
					}
				}
				even(t, cs, ss, [2]*stream{caller, callee})
			})
		})
	}
}

// TestCreditIsConserved runs calls that do random things in both directions at once.
func TestCreditIsConserved(t *testing.T) {
	some := noise(200_000)
	for seed := range uint64(3) {
		synctest.Test(t, func(t *testing.T) {
			accepted := make(transporttest.Accepter, 1)
			options := Options{Config: configured(false, func(c *options.Connections) {
				c.StreamWindow = wire.MinWindow + int(seed)*7777
				c.ConnWindow = 100_000 + int(seed)*5555
			})}
			cs, ss := pair(t, options, Options{}, accepted)
			var all sync.WaitGroup
			var stay [][2]*stream
			for i := range 8 {
				caller, callee := call(t, cs, accepted, map[bool]string{true: "gzip"}[i == 1])
				if i < 6 {
					stay = append(stay, [2]*stream{caller, callee})
				}
				for j, st := range [][2]*stream{{caller, callee}, {callee, caller}} {
					all.Go(func() {
						r := rand.New(rand.NewPCG(seed, uint64(2*i+j)))
						for range 20 {
							f := &link.Frame{Msg: message.Encoded(mem.BufferSlice{mem.SliceBuffer(some[:r.IntN([]int{1, 100, 5000, len(some)}[r.IntN(4)])])}), HasMsg: true}
							if err := st[0].Send(f); err != nil {
								return // the last two calls are abandoned
							}
						}
					})
					all.Go(func() {
						r := rand.New(rand.NewPCG(seed, uint64(1000+2*i+j)))
						for n := range 20 {
							if i >= 6 && n == 10 {
								st[1].Abort(context.Canceled)
							}
							limit := math.MaxInt
							if r.IntN(3) == 0 {
								limit = 3000
							}
							var refused *message.RecvError
							if _, err := receive(st[1], limit); err != nil && !errors.As(err, &refused) {
								if i < 6 {
									t.Error(err)
								}
								return
							}
						}
					})
				}
			}
			all.Wait()
			even(t, cs, ss, stay...)
		})
	}
}

func TestCloseFlushesWhatWasSentBeforeAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		accepted := make(transporttest.Accepter, 1)
		cs, ss := pair(t, Options{}, Options{}, accepted)
		open, _ := call(t, cs, accepted, "")
		want := noise(1 << 20) // needs credit after Close
		var replies sync.WaitGroup
		for range 5 {
			caller, callee := call(t, cs, accepted, "")
			err := callee.Send(&link.Frame{Header: metadata.MD{}, Msg: message.Encoded(mem.BufferSlice{mem.SliceBuffer(want)}), HasMsg: true, End: &link.End{}})
			if err != nil {
				t.Fatal(err)
			}
			replies.Go(func() {
				wants(t, caller, want)
				if _, err := receive(caller, 0); err != link.ErrEnded { // the end came with the message
					t.Errorf("in place of the end comes %v", err)
				}
			})
		}
		began := time.Now()
		_ = ss.Close(errors.New("stopping"))
		replies.Wait()
		<-ss.Gone()
		if time.Since(began) > 0 {
			t.Error("the session waits for nothing")
		}
		says(t, open.Recv(&link.Frame{}), "stopping") // a RESET before the replies told it
		empty(t, ss)
	})
}

// TestCloseDoesNotWaitForever closes a session whose peer does not read the reply.
func TestCloseDoesNotWaitForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		accepted := make(transporttest.Accepter, 1)
		cs, ss := pair(t, Options{}, Options{CloseTimeout: time.Minute}, accepted)
		_, callee := call(t, cs, accepted, "")
		if err := callee.Send(&link.Frame{Msg: ofBytes(1 << 20), HasMsg: true, End: &link.End{}}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		_ = ss.Close(errors.New("stopping"))
		<-ss.Gone()
		if took := time.Since(began); took != time.Minute {
			t.Errorf("it took %v", took)
		}
	})
}

func TestCompressedMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		accepted := make(transporttest.Accepter, 1)
		cs, ss := pair(t, Options{}, Options{}, accepted)
		caller, callee := call(t, cs, accepted, "gzip")
		for _, st := range [][2]*stream{{caller, callee}, {callee, caller}} {
			for _, want := range [][]byte{nil, []byte("x"), make([]byte, 3_000_000), noise(300_000)} {
				sent := make(chan struct{})
				go func() {
					defer close(sent)
					send(t, st[0], want)
				}()
				wants(t, st[1], want)
				<-sent
			}
			// A message of exactly the limit is accepted, for limits from 0 on.
			for _, n := range []int{0, 100_000} {
				send(t, st[0], make([]byte, n))
				if b, err := receive(st[1], n); err != nil || len(b) != n {
					t.Errorf("%d bytes, %v", len(b), err)
				}
			}
			// A message over the limit, compressed or not, is refused; the next one
			// arrives.
			for _, b := range [][]byte{make([]byte, 100_001), noise(100_001)} {
				send(t, st[0], b)
				var refused *message.RecvError
				if _, err := receive(st[1], 100_000); !errors.As(err, &refused) || refused.Err != nil || refused.Size <= 100_000 || refused.Limit != 100_000 {
					t.Errorf("Recv returns %v", err)
				}
			}
			send(t, st[0], []byte("next"))
			wants(t, st[1], []byte("next"))
		}
		even(t, cs, ss, [2]*stream{caller, callee})
	})
}

func TestCompressedMessagesThatAreNone(t *testing.T) {
	for name, c := range map[string]struct{ encoding, body, want string }{
		"no encoding":      {"", "x", "identity or empty encoding"},
		"unknown encoding": {"nosuch", "x", `not installed for grpc-encoding "nosuch"`},
		"nothing":          {"gzip", "", "EOF"},
		"garbage":          {"gzip", "what is not compressed", "header"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &witness{}
				_, peer := met(t, Options{}, w)
				var enc wire.Encoder
				b, _ := enc.Append(nil, &wire.Step{Stream: 1, Open: &link.CallHeader{Profile: &link.Profile{Encoding: c.encoding}}}, 0)
				peer.write(b, literal(compressed, 1, []byte(c.body)...), literal(msg, 1, []byte("next")...))
				var refused *message.RecvError
				_, err := receive(w.first(t), 1000)
				if !errors.As(err, &refused) {
					t.Errorf("%v is no RecvError", err)
				}
				says(t, err, c.want)
				wants(t, w.first(t), []byte("next"))
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		accepted := make(transporttest.Accepter, 1)
		cs, _ := pair(t, Options{}, Options{}, accepted)
		caller, callee := call(t, cs, accepted, "nosuch")
		var refused *message.SendError
		if err := caller.Send(&link.Frame{Msg: ofBytes(1), HasMsg: true}); !errors.As(err, &refused) {
			t.Errorf("Send returns %v, want a SendError", err)
		}
		send(t, caller, nil) // an empty message is not compressed
		wants(t, callee, nil)
	})
}

// bomb returns a compressed message that decompresses to n bytes.
func bomb(t *testing.T, n int) []byte {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	zeros := make([]byte, 1<<20)
	for ; n > 0; n -= len(zeros) {
		_, _ = w.Write(zeros)
	}
	_ = w.Close()
	return b.Bytes()
}

// allocated returns how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestABombAllocatesNoMoreThanTheLimit(t *testing.T) {
	needs.Time(t)
	const limit, little = 1 << 20, 200 << 10
	b := bomb(t, 30<<20)
	got := allocated(func() {
		var refused *message.RecvError
		_, err := message.Decompress(b, "gzip", limit)
		if !errors.As(err, &refused) || refused.Size <= limit || refused.Limit != limit {
			t.Errorf("%v", err)
		}
	})
	if got > limit+little {
		t.Errorf("it allocates %d bytes", got)
	}
}

// TestAMessageInPiecesOfAByte checks that a message in tiny pieces takes about as much
// memory as one in large pieces.
func TestAMessageInPiecesOfAByte(t *testing.T) {
	const size = 1 << 20
	it := &item{Size: size, Missing: size}
	one := []byte{'x'}
	var k encoded.Keeper
	got := allocated(func() {
		for range size {
			it.Add(one, &k)
		}
	})
	if len(it.Data.B) != size || it.Missing != 0 || got > 8*size {
		t.Errorf("%d bytes took %d", len(it.Data.B), got)
	}
	it.Data.Free()
	// Large and small messages keep their order.
	want, at := noise(100_000), 0
	it = &item{Size: len(want), Missing: len(want)}
	for r := rand.New(rand.NewPCG(1, 1)); at < len(want); {
		n := min(1+r.IntN(2000), len(want)-at)
		it.Add(want[at:at+n], &k)
		at += n
	}
	if !bytes.Equal(it.Data.B, want) {
		t.Error("the pieces are out of order")
	}
	it.Data.Free()
}

// TestManyMessagesOfOneByte checks that credit bounds how many small messages are
// queued.
func TestManyMessagesOfOneByte(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		accepted := make(transporttest.Accepter, 1)
		cs, ss := pair(t, Options{}, Options{}, accepted)
		caller, callee := call(t, cs, accepted, "")
		const n = 30_000
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range n {
				send(t, caller, []byte{byte(i)})
			}
			if err := caller.Send(&link.Frame{EndSend: true}); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		if got, most := unreceived(callee), waits.Granted(wire.MinWindow)/(wire.MessageCost+1); got != most {
			t.Errorf("%d messages wait, want %d", got, most)
		}
		for i := range n {
			wants(t, callee, []byte{byte(i)})
		}
		<-done
		even(t, cs, ss)
	})
}

// TestHelloRaisesWhatWaits checks that messages sent before HELLO get the credit of its
// windows.
func TestHelloRaisesWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, peer := lone(t, Options{Client: true}, nil, false)
		var sent sync.WaitGroup
		for range 2 {
			st, err := s.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}})
			if err != nil {
				t.Fatal(err)
			}
			sent.Go(func() {
				for range 3 {
					send(t, st, make([]byte, wire.MinWindow))
				}
			})
		}
		synctest.Wait()
		if n := total(peer); n > wire.MinWindow {
			t.Errorf("%d bytes were sent before HELLO", n)
		}
		peer.write(wire.AppendHello([]byte(wire.Magic), &wire.Hello{Version: 2, Features: 7, Stream: 1 << 20, Connection: 1 << 21, Block: wire.MinBlock}))
		sent.Wait()
		synctest.Wait()
		if n := total(peer); n != 6*wire.MinWindow {
			t.Errorf("%d bytes were sent", n)
		}
	})
}

// total returns how many bytes of messages a raw peer has received.
func total(peer *raw) (n int) {
	var dec wire.Decoder
	for _, f := range peer.of(wire.KindStream) {
		rc, err := dec.Stream(f, nil, true)
		if err != nil {
			peer.Fatal(err)
		}
		n += len(rc.Data)
	}
	return n
}

// TestPiecesOfARefusedMessage checks that the pieces of a skipped message must add up
// to its size, too.
func TestPiecesOfARefusedMessage(t *testing.T) {
	for name, c := range map[string]struct {
		send []byte
		want string
	}{
		"too long":   {literal(piece, 1, fill(200)...), "of its size"},
		"too short":  {literal(piece, 1, 1), "of its size"},
		"another":    {literal(msg, 1, 1), "out of order"},
		"half-close": {literal(finish, 1), "within a message"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &witness{}
				s, peer := met(t, Options{}, w)
				peer.write(opened(1), literal(begins, 1, 100, 1, 2, 3))
				var refused *message.RecvError
				if _, err := receive(w.first(t), 10); !errors.As(err, &refused) || refused.Size != 100 {
					t.Fatal(err)
				}
				peer.write(literal(goesOn, 1, 4, 5))
				if s.connIn+s.taken != s.opts.Config.ConnWindow || w.streams[0].(*stream).in.Skip != 95 {
					t.Errorf("%d bytes are left to skip", w.streams[0].(*stream).in.Skip)
				}
				peer.write(c.send)
				ended(t, s, w, peer, c.want)
			})
		})
	}
}

// TestRepliesThatAreCompressedOtherwise uses the compressor that the callee's header
// names.
func TestRepliesThatAreCompressedOtherwise(t *testing.T) {
	for _, c := range []struct{ requests, replies string }{{"", "gzip"}, {"gzip", "identity"}, {"nosuch", "gzip"}} {
		synctest.Test(t, func(t *testing.T) {
			accepted := make(transporttest.Accepter, 1)
			cs, ss := pair(t, Options{}, Options{}, accepted)
			caller, callee := call(t, cs, accepted, c.requests)
			header := &link.Frame{Header: metadata.MD{link.EncodingKey: {c.replies}}}
			if err := callee.Send(header); err != nil {
				t.Fatal(err)
			}
			want := make([]byte, 50_000)
			send(t, callee, want)
			synctest.Wait()
			ss.mu.Lock()
			wrote := spent(callee)
			ss.mu.Unlock()
			if compressed := wrote < len(want); compressed != (c.replies == "gzip") {
				t.Errorf("%q: %d bytes took %d of credit", c.replies, len(want), wrote)
			}
			wants(t, caller, want)
			if c.requests != "nosuch" {
				send(t, caller, want)
				wants(t, callee, want)
			}
			even(t, cs, ss, [2]*stream{caller, callee})
		})
	}
}

// spent returns the credit that st has used for sending. The session's mu is held.
func spent(st *stream) int { return int(int64(st.session.hello.Stream) - st.flow.Credit) }
