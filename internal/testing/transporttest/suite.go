// Package transporttest tests that a transport fulfils package link's contract of
// streams. Each test runs once with goroutines and once with tasks of an event loop.
package transporttest

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
)

// A Suite tests the streams of one transport.
type Suite struct {
	// Connect returns both sides of a new stream with a deadline, zero for none.
	// It is called inside a synctest bubble, and registers its cleanup with t.
	Connect func(t *testing.T, deadline time.Time) (caller, callee link.Stream)

	// Window is the flow-control window of each direction, in bytes: while a side has sent
	// less than that, and its peer has not received it, the side does not wait. It waits at
	// twice as much at the latest. At least 1000.
	Window int

	// Codec encodes protobuf messages.
	Codec message.Codec

	// Without lists the cases that the transport does not pass, with the reason.
	Without map[string]string
}

// cases are the tests of the suite.
var cases = []struct {
	name string
	run  func(b *bed)
}{
	{"header, messages and end arrive", headerMessagesEnd},
	{"all in one frame", allInOneFrame},
	{"an end alone", endAlone},
	{"end of sending", endOfSending},
	{"a parked receiver gets the next message", parkedReceiver},
	{"others run while a receiver waits", othersRun},
	{"what was sent belongs to the sender again", captured},
	{"a header that was sent does not change", headerStays},
	{"without Dst the message stays", withoutDst},
	{"a message that cannot be encoded wakes nobody", sendError},
	{"a message that cannot be taken is consumed", recvError},
	{"the receiver may know another type", otherType},
	{"messages keep their order", order},
	{"messages of mixed sizes", mixedSizes},
	{"after the end", afterEnd},
	{"an end after the deadline is late", lateEnd},
	{"each side runs its own codec", ownCodec},
	{"a sender waits for credit", senderWaits},
	{"a sender within the window does not wait", withinTheWindow},
	{"a message may be larger than the window", largeMessage},
	{"ends need no credit", needNoCredit},
	{"abort releases a sender", abortReleasesSender},
	{"abort releases a receiver", abortReleasesReceiver},
	{"the peer's end releases a sender", endReleasesSender},
	{"the callee's own end releases its sender", ownEndReleasesSender},
	{"frames without a message may come from anywhere", framesFromAnywhere},
	{"frames before an abort come first", framesBeforeAbort},
	{"the first reason wins", firstReason},
	{"OnAbort is called on both sides", onAbort},
	{"OnAbort after the abort", onAbortLate},
	{"a callee learns of an abort before it is released", calleeLearnsFirst},
	{"a caller learns of an abort when it can receive", callerLearnsLast},
	{"after its own end a callee cannot abort", noAbortAfterEnd},
	{"after its own abort a callee cannot end the call", noEndAfterAbort},
	{"abort at any moment", abortAnyMoment},
}

// Run runs the suite.
func (s Suite) Run(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if why := s.Without[c.name]; why != "" {
				t.Skip(why)
			}
			for waiter, tasks := range map[string]bool{"goroutines": false, "tasks": true} {
				t.Run(waiter, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { c.run(s.bed(t, tasks, time.Time{})) })
				})
			}
		})
	}
}

// A bed gives a test a stream and lets it act on both sides.
type bed struct {
	*testing.T
	suite          Suite
	caller, callee *side
}

func (s Suite) bed(t *testing.T, tasks bool, deadline time.Time) *bed {
	caller, callee := s.Connect(t, deadline)
	b := &bed{T: t, suite: s}
	b.caller, b.callee = b.side(caller, tasks), b.side(callee, tasks)
	return b
}

// again returns a bed with a new stream.
func (b *bed) again() *bed { return b.until(time.Time{}) }

// until is again with a deadline.
func (b *bed) until(deadline time.Time) *bed { return b.suite.bed(b.T, b.caller.loop != nil, deadline) }

// both returns each side with its peer.
func (b *bed) both() [][2]*side { return [][2]*side{{b.caller, b.callee}, {b.callee, b.caller}} }

// A side is one side of the stream, with the loop that runs its calls.
type side struct {
	link.Stream
	bed  *bed
	loop *Tasks // nil for goroutines
}

func (b *bed) side(st link.Stream, tasks bool) *side {
	s := &side{Stream: st, bed: b}
	if tasks {
		s.loop = NewTasks()
		s.Stream = link.StreamFor(s.loop, st)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.loop.Run()
		}()
		b.Cleanup(func() {
			s.loop.Close()
			<-ended
		})
	}
	return s
}

// start runs f in a goroutine or a task. The channel is closed when f returns.
func (s *side) start(f func()) <-chan struct{} {
	done := make(chan struct{})
	g := func() {
		defer close(done)
		f()
	}
	if s.loop == nil {
		go g()
	} else {
		s.loop.Go(g)
	}
	return done
}

// send sends a frame and returns the error.
func (s *side) send(f *link.Frame) (err error) {
	<-s.start(func() { err = s.Send(f) })
	return err
}

// must sends a frame and fails the test on an error.
func (s *side) must(f *link.Frame) {
	s.bed.Helper()
	if err := s.send(f); err != nil {
		s.bed.Fatalf("Send: %v", err)
	}
}

// message returns a frame with a message of n bytes, all of them c.
func (b *bed) message(c byte, n int) *link.Frame {
	body := make([]byte, n)
	for i := range body {
		body[i] = c
	}
	return &link.Frame{Msg: message.Live(wrapperspb.Bytes(body), b.suite.Codec), HasMsg: true}
}

// sink returns a message.Sink that decodes a message into dst.
func (b *bed) sink(dst any) message.Sink {
	return message.Sink{Dst: dst, Codec: b.suite.Codec, Limit: 1 << 30}
}

// A result merges the frames received by one call of receive.
type result struct {
	link.Frame
	bytes []byte
	err   error
}

// recv receives until a message, an end or an error arrives.
func (s *side) recv() (r result) {
	<-s.start(func() { r = s.receive() })
	return r
}

// receive is like recv, but must be called by a goroutine or task that start runs.
func (s *side) receive() result {
	m := new(wrapperspb.BytesValue)
	f := &link.Frame{Sink: s.bed.sink(m)}
	var r result
	for {
		r.err = s.Recv(f)
		if f.Header != nil {
			r.Header = f.Header
		}
		r.End, r.EndSend, r.Got = f.End, f.EndSend, f.Got
		if r.Got {
			r.bytes = m.Value
		}
		if r.err != nil || r.Got || r.End != nil || r.EndSend {
			return r
		}
	}
}

// wants receives, and fails the test unless it gets a message of n bytes that are
// all c.
func (s *side) wants(c byte, n int) result {
	s.bed.Helper()
	r := s.recv()
	if r.err != nil || !r.Got {
		s.bed.Fatalf("received %+v, want a message", r)
	}
	if len(r.bytes) != n || n > 0 && (r.bytes[0] != c || r.bytes[n-1] != c) {
		s.bed.Fatalf("received %d bytes, want %d of %q", len(r.bytes), n, c)
	}
	return r
}

// settle waits until all goroutines of the bubble are blocked and its timers have
// fired.
func settle() {
	time.Sleep(time.Minute) // of the bubble's fake clock
	synctest.Wait()
}

// over reports whether the function that start runs has returned.
func over(done <-chan struct{}) bool {
	settle()
	select {
	case <-done:
		return true
	default:
		return false
	}
}
