package mux

import (
	"bytes"
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/mux/waits"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/wire"
)

// unary returns a call with a request of n bytes, and a pointer to its reply.
func unary(method string, n, limit int) (c *link.UnaryCall, reply *[]byte) {
	m := ofBytes(n)
	reply = new([]byte)
	return &link.UnaryCall{
		CallHeader: link.CallHeader{Method: method, Profile: &link.Profile{}, MaxReply: limit},
		Codec:      rawCodec,
		Request:    &m,
		Reply:      reply,
	}, reply
}

// whole returns a reply with header, message and end in one frame.
func whole(id uint64, message ...byte) []byte {
	return literal(head|wire.FlagMessage|wire.FlagEnd, id, append([]byte{0, 0, 0}, message...)...)
}

// made is the outcome of a call.
type made struct {
	call  *link.UnaryCall
	reply []byte
	err   error
}

// makes makes a call in the background.
func makes(ctx context.Context, s *Session, method string, n, limit int) <-chan made {
	out := make(chan made, 1)
	go func() {
		c, reply := unary(method, n, limit)
		err := s.Invoke(ctx, c)
		out <- made{c, *reply, err}
	}()
	return out
}

func TestAnswersToACall(t *testing.T) {
	for name, c := range map[string]struct {
		send   [][]byte
		reply  string
		code   codes.Code
		header bool
	}{
		"in one frame":        {[][]byte{whole(1, []byte("reply")...)}, "reply", 0, true},
		"step by step":        {[][]byte{literal(head, 1, 0), literal(msg, 1, []byte("reply")...), literal(finish, 1, 0, 0)}, "reply", 0, true},
		"without a header":    {[][]byte{literal(msg, 1, []byte("reply")...), literal(finish, 1, 0, 0)}, "reply", 0, false},
		"in pieces":           {[][]byte{literal(begins, 1, 5, 'r'), literal(goesOn, 1, []byte("epl")...), literal(piece, 1, 'y'), literal(finish, 1, 0, 0)}, "reply", 0, false},
		"an end alone":        {[][]byte{literal(finish, 1, 5, 0, 0, 0)}, "", codes.NotFound, false},
		"a reply and a code":  {[][]byte{literal(msg, 1, []byte("reply")...), literal(finish, 1, 5, 0, 0, 0)}, "reply", codes.NotFound, false},
		"more after the end":  {[][]byte{whole(1, []byte("reply")...), literal(msg, 1, 1), literal(head, 1, 0), literal(finish, 1, 0, 0)}, "reply", 0, true},
		"a late header":       {[][]byte{literal(msg, 1, []byte("reply")...), literal(head, 1, 0), literal(finish, 1, 0, 0)}, "reply", 0, true},
		"and in one write":    {[][]byte{append(append(literal(msg, 1, []byte("reply")...), literal(head, 1, 0)...), literal(finish, 1, 0, 0)...)}, "reply", 0, true},
		"an end in one write": {[][]byte{append(literal(msg, 1, []byte("reply")...), literal(finish, 1, 0, 0)...)}, "reply", 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, peer := met(t, Options{Client: true}, nil)
				out := makes(t.Context(), s, "/a/b", 10, 5)
				synctest.Wait()
				peer.write(c.send...)
				got := <-out
				if got.err != nil || got.call.ReplyError != nil || string(got.reply) != c.reply || got.call.Replied != (c.reply != "") {
					t.Fatalf("%q, %v, %v, %v", got.reply, got.call.Replied, got.call.ReplyError, got.err)
				}
				if got.call.Status.Code() != c.code || (got.call.Header != nil) != c.header {
					t.Errorf("status %v, header %v", got.call.Status, got.call.Header)
				}
				empty(t, s)
				if n := len(peer.of(wire.KindReset)); n > 0 {
					t.Errorf("%d RESETs", n)
				}
			})
		})
	}
}

// writes reports whether a call that fails with err may have written to its reply: of
// two replies, the first is decoded.
func writes(err error) bool {
	var refused *message.RecvError
	return errors.Is(err, link.ErrReplies) || errors.As(err, &refused)
}

// TestAnswersThatACallDoesNotTake checks that an invalid reply fails the call, resets
// it unless it had ended, and leaves the session open.
func TestAnswersThatACallDoesNotTake(t *testing.T) {
	replies := func(err error) bool { return errors.Is(err, link.ErrReplies) }
	large := func(size int) func(error) bool {
		return func(err error) bool {
			var refused *message.RecvError
			return errors.As(err, &refused) && refused.Size == size && refused.Limit == 5
		}
	}
	for name, c := range map[string]struct {
		send [][]byte
		want func(error) bool
		over bool // the peer has ended the call
	}{
		"two messages":           {[][]byte{literal(msg, 1, 1), literal(msg, 1, 2)}, replies, false},
		"one and one in pieces":  {[][]byte{literal(msg, 1, 1), append(literal(begins, 1, 3, 1), literal(piece, 1, 2, 3)...)}, replies, false},
		"two and an end":         {[][]byte{literal(msg, 1, 1), literal(msg|wire.FlagEnd, 1, 0, 0, 2)}, replies, true},
		"two and a late header":  {[][]byte{literal(msg, 1, 1), literal(head|wire.FlagMessage, 1, 0, 1)}, replies, false},
		"and it comes last":      {[][]byte{append(append(literal(msg, 1, 1), literal(msg, 1, 1)...), literal(head, 1, 0)...)}, replies, false},
		"empty ones":             {[][]byte{literal(msg, 1), literal(msg, 1)}, replies, false},
		"a large one":            {[][]byte{literal(msg, 1, fill(6)...)}, large(6), false},
		"the start of one":       {[][]byte{literal(begins, 1, 0xff, 0xff, 0x7f, 1)}, large(1<<21 - 1), false},
		"and more of it":         {[][]byte{append(literal(begins, 1, 6, 1), literal(goesOn, 1, 2, 3)...)}, large(6), false},
		"a large one and an end": {[][]byte{whole(1, fill(6)...)}, large(6), true},
		"a large second":         {[][]byte{append(literal(msg, 1, 1), literal(msg, 1, fill(6)...)...)}, large(6), false},
		"a large second's start": {[][]byte{literal(msg, 1, 1), literal(begins, 1, 7, 1)}, large(7), false},
		"reset within a second":  {[][]byte{literal(msg, 1, 1), append(literal(begins, 1, 3, 1), wire.AppendReset(nil, 1, wire.ResetExhausted, "no")...)}, func(err error) bool { return errors.Is(err, link.ErrExhausted) }, true},
		"reset":                  {[][]byte{wire.AppendReset(nil, 1, wire.ResetUnprocessed, "no")}, func(err error) bool { return errors.Is(err, link.ErrUnprocessed) }, true},
		"reset within one":       {[][]byte{literal(begins, 1, 5, 1), wire.AppendReset(nil, 1, wire.ResetExhausted, "no")}, func(err error) bool { return errors.Is(err, link.ErrExhausted) }, true},
		"reset after one":        {[][]byte{literal(msg, 1, 1), wire.AppendReset(nil, 1, wire.ResetExhausted, "no")}, func(err error) bool { return errors.Is(err, link.ErrExhausted) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &witness{}
				s, peer := met(t, Options{Client: true}, w)
				out := makes(t.Context(), s, "/a/b", 10, 5)
				synctest.Wait()
				peer.write(c.send...)
				got := <-out
				if !c.want(got.err) || got.call.Replied || got.reply != nil && !writes(got.err) {
					t.Fatalf("%q, %v, %v", got.reply, got.call.Replied, got.err)
				}
				if n := len(peer.of(wire.KindReset)); (n == 0) != c.over {
					t.Errorf("%d RESETs", n)
				}
				empty(t, s)
				peer.write(literal(piece, 1, 1), literal(msg, 1, 1)) // frames that were already on their way
				out = makes(t.Context(), s, "/a/b", 10, 5)
				synctest.Wait()
				peer.write(whole(3, []byte("next")...))
				if got := <-out; got.err != nil || string(got.reply) != "next" {
					t.Errorf("the next call: %q, %v; %v", got.reply, got.err, w.closed)
				}
			})
		})
	}
}

func TestAnswersAgainstTheRules(t *testing.T) {
	for name, c := range map[string]struct {
		send [][]byte
		want string
	}{
		"header twice":       {[][]byte{literal(head, 1, 0), literal(head, 1, 0)}, "comes twice"},
		"header within one":  {[][]byte{literal(begins, 1, 5, 1), literal(head, 1, 0)}, "within a message"},
		"end within one":     {[][]byte{literal(begins, 1, 5, 1), literal(finish, 1, 0, 0)}, "within a message"},
		"pieces too long":    {[][]byte{literal(begins, 1, 3, 1), literal(piece, 1, 1, 1, 1)}, "of its size"},
		"pieces too short":   {[][]byte{literal(begins, 1, 3, 1), literal(piece, 1, 1)}, "of its size"},
		"a piece of none":    {[][]byte{literal(piece, 1, 1)}, "out of order"},
		"one within another": {[][]byte{literal(begins, 1, 3, 1), literal(msg, 1, 1)}, "out of order"},
		"half an end":        {[][]byte{literal(finish, 1, 5, 1)}, "ends early"},
		"of a call not made": {[][]byte{whole(3)}, "was not opened"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &witness{}
				s, peer := met(t, Options{Client: true}, w)
				out := makes(t.Context(), s, "/a/b", 10, 5)
				synctest.Wait()
				peer.write(c.send...)
				if got := <-out; got.err == nil || got.call.Replied {
					t.Errorf("%q, %v", got.reply, got.err)
				}
				ended(t, s, w, peer, c.want)
			})
		})
	}
}

// TestACallThatIsLeft cancels calls before and after their first frame is written.
func TestACallThatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, peer := met(t, Options{Client: true}, nil)
		ctx, cancel := context.WithCancel(t.Context())
		out := makes(ctx, s, "/a/b", 3*wire.MinWindow, 5) // more than the credit
		synctest.Wait()
		cancel()
		if got := <-out; got.err != context.Canceled {
			t.Errorf("%v", got.err)
		}
		if r := peer.of(wire.KindReset); len(r) != 1 || r[0].Stream != 1 || r[0].Body[0] != byte(wire.ResetCancelled) {
			t.Errorf("the peer gets %v", r)
		}
		empty(t, s)
		if got := <-makes(ctx, s, "/a/b", 1, 5); got.err != context.Canceled {
			t.Errorf("%v", got.err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if got := <-makes(ctx, s, "/a/b", 0, 5); got.err != context.DeadlineExceeded {
			t.Errorf("%v", got.err)
		}
		if r := peer.of(wire.KindReset); len(r) != 2 || r[1].Stream != 3 || r[1].Body[0] != byte(wire.ResetDeadline) {
			t.Errorf("the peer gets %v", r)
		}
		empty(t, s)
	})
}

func TestACallThatCannotBeEncoded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, peer := met(t, Options{Client: true}, nil)
		c, _ := unary("/a/b", 1, 5)
		c.Profile = &link.Profile{Encoding: "nosuch"}
		var refused *message.SendError
		if err := s.Invoke(t.Context(), c); !errors.As(err, &refused) {
			t.Errorf("%v", err)
		}
		c, _ = unary(string(fill(wire.MinBlock)), 1, 5)
		if err := s.Invoke(t.Context(), c); !errors.Is(err, link.ErrBroken) {
			t.Errorf("%v", err)
		}
		empty(t, s)
		if n := len(peer.of(wire.KindStream)); n > 0 {
			t.Errorf("%d frames were sent", n)
		}
	})
}

// TestAReplyLargerThanTheWindow checks that the peer gets the credit for a large reply,
// up to the caller's limit.
func TestAReplyLargerThanTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, peer := met(t, Options{Client: true}, nil)
		const size = 2*wire.MinWindow + 1
		out := makes(t.Context(), s, "/a/b", 1, size)
		synctest.Wait()
		want := noise(size)
		var enc wire.Encoder
		step := &wire.Step{Stream: 1, HasMessage: true, Message: want, End: &link.End{}}
		window := waits.Granted(wire.MinWindow)
		b, cost := enc.Append(nil, step, window)
		for left := window - cost; left > 0; left -= cost {
			b, cost = enc.Append(b, step, left)
		}
		peer.write(b)
		if got := peer.credit(1); got != size+wire.MessageCost-window {
			t.Errorf("%d bytes of credit were given", got)
		}
		for b = nil; !step.Done(); {
			b, _ = enc.Append(b, step, size)
		}
		peer.write(b)
		if got := <-out; got.err != nil || !bytes.Equal(got.reply, want) {
			t.Errorf("%d bytes, %v", len(got.reply), got.err)
		}
		empty(t, s)
	})
}

// TestByeComesWhenTheLastReplyIsUnwanted checks that BYE follows the end of the last
// call, and does not wait for CloseTimeout.
func TestByeComesWhenTheLastReplyIsUnwanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		s, peer := met(t, Options{}, w)
		peer.write(opened(1))
		if err := w.first(t).Send(&link.Frame{Msg: ofBytes(3 * wire.MinWindow), HasMsg: true, End: &link.End{}}); err != nil {
			t.Fatal(err)
		}
		_ = s.Close(errors.New("stopping"))
		synctest.Wait()
		if n := len(peer.of(wire.KindBye)); n > 0 {
			t.Fatal("the reply was not waited for")
		}
		began := time.Now()
		peer.write(wire.AppendReset(nil, 1, 0, ""))
		if took := time.Since(began); took > 0 || len(peer.of(wire.KindBye)) != 1 {
			t.Errorf("after %v the peer got %v", took, peer.of(wire.KindBye))
		}
		_ = peer.conn.Close()
		<-s.Gone()
	})
}

// TestWhatWasReadBeforeIsAnswered checks that input from Options.First is handled at
// once, not with the first read.
func TestWhatWasReadBeforeIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := append(start(), wire.AppendPing(nil, wire.KindPing, [8]byte{7})...)
		_, peer := lone(t, Options{First: first}, &witness{}, false)
		if p := peer.of(wire.KindPong); len(p) != 1 || p[0].Body[0] != 7 {
			t.Errorf("the peer gets %v", p)
		}
	})
}

// A closing is an Acceptor whose Closed takes some time.
type closing struct {
	witness
	told bool // unguarded: the race detector must find no race
	gone chan bool
}

func (c *closing) Closed(error) {
	time.Sleep(time.Millisecond)
	c.told = true
}

func (c *closing) Gone() { c.gone <- c.told }

// TestNothingIsToldAfterTheSessionIsGone checks that Closed returns before Gone is
// called, also if the session ends by itself.
func TestNothingIsToldAfterTheSessionIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine, peers := net.Pipe()
		s, w := newSession(mine, Options{}), &closing{gone: make(chan bool, 2)}
		s.Start(w)
		peer := &raw{T: t, conn: peers, read: make(chan struct{})}
		go peer.readAll()
		peer.write(start())
		s.Drain()
		<-peer.read
		_ = peers.Close()
		<-s.Gone()
		if !w.told {
			t.Error("nobody was told of the end")
		}
		synctest.Wait()
		if len(w.gone) != 1 || !<-w.gone {
			t.Error("it was not told once, and after that, that nothing is left")
		}
	})
}

// TestASessionThatDrainsBeforeItStarts checks that such a session ends by itself: after the peer's
// answer if it accepts calls, and otherwise at once.
func TestASessionThatDrainsBeforeItStarts(t *testing.T) {
	for _, acceptor := range []link.Acceptor{&witness{}, nil} {
		synctest.Test(t, func(t *testing.T) {
			mine, peers := net.Pipe()
			s := newSession(mine, Options{})
			s.Drain()
			peer := &raw{T: t, conn: peers, read: make(chan struct{})}
			go peer.readAll()
			s.Start(acceptor)
			peer.write(start())
			if acceptor != nil {
				if n := len(peer.of(wire.KindBye)); n != 0 {
					t.Errorf("the peer gets %d BYEs before it answers", n)
				}
				peer.write(pong(peer))
			}
			if n := len(peer.of(wire.KindBye)); n != 1 {
				t.Errorf("the peer gets %d BYEs", n)
			}
			_ = peers.Close()
			<-s.Gone()
			<-peer.read
		})
	}
}

// TestASecondReplyAfterAFullWindow checks that a second reply can arrive, and end the
// call, although the first one has used all of the credit.
func TestASecondReplyAfterAFullWindow(t *testing.T) {
	for _, size := range []int{waits.Granted(wire.MinWindow) - wire.MessageCost, 2 * wire.MinWindow, 5 * wire.MinWindow} {
		synctest.Test(t, func(t *testing.T) {
			w := &witness{}
			o := Options{Config: configured(false, func(c *options.Connections) { c.StreamWindow = wire.MinWindow; c.MaxStreamWindow = 2 * wire.MinWindow })}
			client := o
			client.Client = true
			cs, _ := pair(t, client, o, w)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			out := makes(ctx, cs, "/a/b", 1, 1<<30)
			synctest.Wait()
			callee := w.first(t)
			go func() {
				for range 2 {
					m := ofBytes(size)
					if callee.Send(&link.Frame{HasMsg: true, Msg: m}) != nil {
						return
					}
				}
			}()
			if got := <-out; !errors.Is(got.err, link.ErrReplies) {
				t.Errorf("of %d bytes: %v", size, got.err)
			}
		})
	}
}
