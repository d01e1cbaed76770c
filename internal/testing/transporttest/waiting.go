package transporttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

// fill sends messages of 1000 bytes until the sender waits for credit. sent counts
// the messages; once done is closed, err is the sender's error.
func (s *side) fill() (sent *atomic.Int64, err *error, done <-chan struct{}) {
	sent, err = new(atomic.Int64), new(error)
	most := int64(2*s.bed.suite.Window/1000 + 2)
	done = s.start(func() {
		for sent.Load() < 2*most {
			if *err = s.Send(s.bed.message('m', 1000)); *err != nil {
				return
			}
			sent.Add(1)
		}
	})
	if over(done) {
		s.bed.Fatalf("the sender did not wait; it returned %v after %d messages", *err, sent.Load())
	}
	<-s.start(func() {}) // others run while the sender waits
	if n := sent.Load(); n > most {
		s.bed.Fatalf("%d messages of 1000 bytes were sent with a window of %d bytes", n, s.bed.suite.Window)
	}
	return sent, err, done
}

func senderWaits(b *bed) {
	for _, s := range b.both() {
		sent, err, done := s[0].fill()
		for received := int64(0); received < sent.Load() || !over(done); received++ {
			s[1].wants('m', 1000)
		}
		<-done
		if *err != nil {
			b.Error(*err)
		}
	}
}

// withinTheWindow sends messages of one size until the sender waits, and receives them one by one.
// In both orders, whether the sender began to wait before or after the peer received, it must not
// wait while all that was sent and not received is less than the window.
func withinTheWindow(b *bed) {
	for _, size := range []int{1000, b.suite.Window / 3, b.suite.Window * 5 / 8} {
		for _, s := range b.both() {
			sent, received := 0, 0
			cost := size + 20 // at most, with the message's own encoding
			ahead := func() int { return (sent - received) * cost }
			for range 3 * (b.suite.Window/cost + 1) {
				done := s[0].start(func() { _ = s[0].Send(b.message('m', size)) })
				for !over(done) {
					if ahead() < b.suite.Window {
						b.Fatalf("%d messages of %d bytes were sent and %d received, and the sender waits, with a window of %d bytes",
							sent, size, received, b.suite.Window)
					}
					s[1].wants('m', size)
					received++
				}
				sent++
			}
			for ; received < sent; received++ {
				s[1].wants('m', size)
			}
		}
	}
}

func largeMessage(b *bed) {
	n := 3*b.suite.Window + 1
	for _, s := range b.both() {
		s[0].must(b.message('a', n))
		waits := s[0].start(func() {
			if err := s[0].Send(b.message('b', n)); err != nil {
				b.Error(err)
			}
		})
		if over(waits) {
			b.Error("a second large message did not wait")
		}
		s[1].wants('a', n)
		<-waits
		s[1].wants('b', n)
	}
}

func needNoCredit(b *bed) {
	b.caller.must(b.message('a', 2*b.suite.Window))
	b.caller.must(&link.Frame{EndSend: true})
	b.callee.must(b.message('a', 2*b.suite.Window))
	b.callee.must(&link.Frame{End: &link.End{}})
}

var errTest = errors.New("the test says so")

func abortReleasesSender(b *bed) {
	for sends := range 2 {
		for aborts := range 2 {
			b := b.again()
			sender := b.both()[sends][0]
			_, err, done := sender.fill()
			b.both()[aborts][0].Abort(context.Canceled)
			<-done
			if !errors.Is(*err, context.Canceled) {
				b.Errorf("Send returns %v, want the reason", *err)
			}
			if err := sender.send(&link.Frame{EndSend: sends == 0}); !errors.Is(err, context.Canceled) {
				b.Errorf("a later Send returns %v, want the reason", err)
			}
		}
	}
}

func abortReleasesReceiver(b *bed) {
	var here, there result
	mine := b.caller.start(func() { here = b.caller.receive() })
	peers := b.callee.start(func() { there = b.callee.receive() })
	settle()
	b.caller.Abort(fmt.Errorf("because: %w", context.DeadlineExceeded))
	<-mine
	<-peers
	for _, r := range []result{here, there, b.caller.recv(), b.callee.recv()} {
		if !errors.Is(r.err, context.DeadlineExceeded) {
			b.Errorf("received %+v, want the reason", r)
		}
	}
}

func endReleasesSender(b *bed) {
	_, err, done := b.caller.fill()
	b.callee.must(&link.Frame{End: &link.End{}})
	<-done
	if *err != link.ErrEnded {
		b.Errorf("Send returns %v, want ErrEnded", *err)
	}
}

func ownEndReleasesSender(b *bed) {
	_, err, done := b.callee.fill()
	b.callee.must(&link.Frame{End: &link.End{}})
	<-done
	if *err != link.ErrEnded {
		b.Errorf("Send returns %v, want ErrEnded", *err)
	}
	if err := b.callee.send(b.message('a', 1)); err != link.ErrEnded {
		b.Errorf("a later Send returns %v, want ErrEnded", err)
	}
	for {
		r := b.caller.recv()
		if r.err != nil {
			b.Fatal(r.err)
		}
		if r.End != nil {
			return
		}
	}
}

func framesFromAnywhere(b *bed) {
	sent, err, done := b.callee.fill()
	b.callee.must(&link.Frame{Header: metadata.MD{"k": {"v"}}})
	header := false
	for received := int64(0); received < sent.Load() || !over(done); {
		r := b.caller.recv()
		if r.err != nil {
			b.Fatal(r.err)
		}
		header = header || r.Header != nil
		received++
	}
	<-done
	if *err != nil || !header {
		b.Errorf("Send returns %v; a header arrived: %t", *err, header)
	}
}

func calleeLearnsFirst(b *bed) {
	for _, waiting := range []string{"Recv", "Send"} {
		b := b.again()
		var told atomic.Bool
		b.callee.OnAbort(func(error) {
			runtime.Gosched()
			told.Store(true)
		})
		done := b.callee.start(func() {
			for err := error(nil); err == nil; {
				if waiting == "Recv" {
					err = b.callee.receive().err
				} else {
					err = b.callee.Send(b.message('m', 1000))
				}
			}
			if !told.Load() {
				b.Errorf("%s returned before OnAbort was called", waiting)
			}
		})
		settle()
		b.caller.Abort(context.Canceled)
		<-done
	}
}

func callerLearnsLast(b *bed) {
	for aborts := range 2 {
		b := b.again()
		b.callee.must(b.message('a', 5))
		settle()
		done := make(chan struct{})
		b.caller.OnAbort(func(error) {
			defer close(done)
			// These do not wait: OnAbort's function must not.
			if r := b.caller.receive(); r.err != nil || len(r.bytes) != 5 {
				b.Errorf("received %+v, want what had arrived", r)
			}
			if r := b.caller.receive(); !errors.Is(r.err, context.Canceled) {
				b.Errorf("received %+v, want the reason", r)
			}
		})
		b.both()[aborts][0].Abort(context.Canceled)
		<-done
	}
}

func noAbortAfterEnd(b *bed) {
	b.callee.OnAbort(func(reason error) { b.Errorf("OnAbort was called on the callee: %v", reason) })
	b.callee.must(b.message('a', 5))
	b.callee.must(&link.Frame{End: &link.End{}})
	b.callee.Abort(context.Canceled)
	b.callee.Abort(context.Canceled)
	settle()
	r := b.caller.wants('a', 5)
	if r.End == nil {
		r = b.caller.recv()
	}
	if r.err != nil || r.End == nil {
		b.Errorf("the caller receives %+v, want the end", r)
	}
}

// noEndAfterAbort: a handler may return while it is told of the abort, as when its server stops. Its
// caller gets the reason of the abort.
func noEndAfterAbort(b *bed) {
	b.callee.OnAbort(func(error) {
		b.callee.start(func() {
			_ = b.callee.Send(&link.Frame{End: &link.End{Status: status.New(codes.Canceled, "the handler's")}})
		})
		time.Sleep(time.Millisecond) // it sends, if it can
	})
	settle()
	b.callee.Abort(errTest)
	settle()
	if r := b.caller.recv(); r.End != nil || r.err == nil || !strings.Contains(r.err.Error(), errTest.Error()) {
		b.Errorf("the caller receives %+v, want the reason", r)
	}
}

func framesBeforeAbort(b *bed) {
	for _, s := range b.both() {
		s[0].must(b.message('a', 3))
		s[0].must(b.message('b', 4))
	}
	settle()
	b.callee.Abort(context.Canceled)
	settle()
	for _, s := range b.both() {
		s[1].wants('a', 3)
		s[1].wants('b', 4)
		if r := s[1].recv(); !errors.Is(r.err, context.Canceled) {
			b.Errorf("received %+v, want the reason", r)
		}
	}
}

func firstReason(b *bed) {
	b.callee.Abort(errTest)
	b.callee.Abort(context.Canceled)
	settle()
	b.caller.Abort(context.DeadlineExceeded)
	for _, s := range b.both() {
		if r := s[0].recv(); r.err == nil || r.err.Error() != errTest.Error() {
			b.Errorf("received %+v, want the first reason", r)
		}
		if err := s[0].send(b.message('a', 1)); err == nil || err.Error() != errTest.Error() {
			b.Errorf("Send returns %v, want the first reason", err)
		}
	}
}

func onAbort(b *bed) {
	var told [2]atomic.Int32
	var reasons [2]error
	for i, s := range b.both() {
		s[0].OnAbort(func(reason error) {
			reasons[i] = reason
			told[i].Add(1)
		})
	}
	b.caller.Abort(context.Canceled)
	settle()
	b.callee.Abort(context.DeadlineExceeded)
	b.caller.Abort(context.DeadlineExceeded)
	settle()
	for i := range told {
		if told[i].Load() != 1 || !errors.Is(reasons[i], context.Canceled) {
			b.Errorf("side %d was told %d times: %v", i, told[i].Load(), reasons[i])
		}
	}
}

func onAbortLate(b *bed) {
	b.callee.Abort(context.Canceled)
	settle()
	for i, s := range b.both() {
		var reason error
		s[0].OnAbort(func(err error) { reason = err })
		if !errors.Is(reason, context.Canceled) {
			b.Errorf("side %d was told %v", i, reason)
		}
	}
}

// abortAnyMoment aborts while both sides send and receive. Each side must receive a
// prefix of the messages sent to it, and all calls must return the reason.
func abortAnyMoment(b *bed) {
	for seed := range uint64(needs.Rounds(20)) {
		b := b.again()
		r := rand.New(rand.NewPCG(seed, 0))
		now := make(chan struct{})
		when := r.IntN(100)
		var all []<-chan struct{}
		for side, s := range b.both() {
			all = append(all, s[0].start(func() {
				for i := 0; ; i++ {
					if side == 0 && i == when {
						close(now)
					}
					if err := s[0].Send(b.message(byte(i), 1+i*37%5000)); err != nil {
						if !errors.Is(err, context.Canceled) {
							b.Errorf("Send: %v", err)
						}
						return
					}
				}
			}), s[1].start(func() {
				for i := 0; ; i++ {
					r := s[1].receive()
					if r.err != nil {
						if !errors.Is(r.err, context.Canceled) {
							b.Errorf("Recv: %v", r.err)
						}
						return
					}
					if len(r.bytes) != 1+i*37%5000 || r.bytes[0] != byte(i) {
						b.Errorf("message %d has %d bytes of %d", i, len(r.bytes), r.bytes[0])
					}
				}
			}))
		}
		<-now
		b.both()[r.IntN(2)][0].Abort(context.Canceled)
		for _, done := range all {
			<-done
		}
	}
}
