package transporttest

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

func headerMessagesEnd(b *bed) {
	b.callee.must(&link.Frame{Header: metadata.MD{"k": {"v", ""}}})
	b.callee.must(b.message('a', 10))
	b.callee.must(b.message('b', 0))
	b.callee.must(&link.Frame{End: &link.End{Status: status.New(codes.NotFound, "no"), Trailer: metadata.MD{"t": {"x"}}}})
	if r := b.caller.wants('a', 10); !slices.Equal(r.Header["k"], []string{"v", ""}) {
		b.Errorf("header %v", r.Header)
	}
	r := b.caller.wants('b', 0)
	if r.End == nil {
		r = b.caller.recv()
	}
	if r.err != nil || r.End == nil || r.End.Status.Code() != codes.NotFound || r.End.Status.Message() != "no" || r.End.Trailer["t"][0] != "x" {
		b.Errorf("%+v, want the end", r)
	}
}

func allInOneFrame(b *bed) {
	f := b.message('a', 5)
	f.Header, f.End = metadata.MD{}, &link.End{}
	b.callee.must(f)
	r := b.caller.wants('a', 5)
	if r.Header == nil {
		b.Error("an empty header got lost")
	}
	if r.End == nil {
		r = b.caller.recv()
	}
	if r.err != nil || r.End == nil || r.End.Status != nil || len(r.End.Trailer) > 0 {
		b.Errorf("%+v, want an end that is OK", r)
	}
}

func endAlone(b *bed) {
	done := b.caller.start(func() {
		if r := b.caller.receive(); r.err != nil || r.End == nil || r.Header != nil {
			b.Errorf("%+v, want the end alone", r)
		}
	})
	settle()
	b.callee.must(&link.Frame{End: &link.End{}})
	<-done
}

// lateEnd: whether an end is late depends on when it arrives, not on when it is received.
func lateEnd(b *bed) {
	const timeout = time.Minute
	for name, when := range map[string]struct {
		end, recv time.Duration // from the beginning of the call
		late      bool
	}{
		"in time":                    {timeout / 2, timeout / 4, false},
		"in time, and received late": {timeout / 2, 2 * timeout, false},
		"at the deadline":            {timeout, timeout / 2, true},
		"after the deadline":         {2 * timeout, timeout / 2, true},
	} {
		for kind, f := range map[string]*link.Frame{"alone": {}, "with a message": b.message('a', 5)} {
			deadline := time.Now().Add(timeout)
			b := b.until(deadline)
			f.End = new(link.End)
			sent := b.callee.start(func() {
				time.Sleep(when.end)
				_ = b.callee.Send(f) // a callee may know that the call has ended already
			})
			var got []result
			received := b.caller.start(func() {
				time.Sleep(when.recv)
				for len(got) == 0 || got[len(got)-1].Got && got[len(got)-1].End == nil {
					got = append(got, b.caller.receive())
				}
			})
			<-sent
			<-received
			r := got[len(got)-1]
			if r.err != nil || r.End == nil || r.End.Late != when.late {
				b.Errorf("%s, %s: received %+v, want an end with Late = %t", name, kind, r, when.late)
			}
			if f.End.Late {
				b.Errorf("%s, %s: the callee's own end was changed", name, kind)
			}
		}
	}
	b = b.again()
	time.Sleep(10 * timeout)
	b.callee.must(&link.Frame{End: new(link.End)})
	if r := b.caller.recv(); r.err != nil || r.End == nil || r.End.Late {
		b.Errorf("without a deadline: received %+v, want an end that is not late", r)
	}
}

func endOfSending(b *bed) {
	b.caller.must(b.message('a', 5))
	f := b.message('b', 6)
	f.EndSend = true
	b.caller.must(f)
	b.callee.wants('a', 5)
	if r := b.callee.wants('b', 6); !r.EndSend {
		if r = b.callee.recv(); !r.EndSend || r.err != nil {
			b.Errorf("%+v, want the end of sending", r)
		}
	}
	// The other direction stays open.
	b.callee.must(b.message('c', 7))
	b.caller.wants('c', 7)
}

func parkedReceiver(b *bed) {
	for _, s := range b.both() {
		for i := range 3 {
			var r result
			done := s[1].start(func() { r = s[1].receive() })
			if over(done) {
				b.Fatalf("Recv does not wait: %+v", r)
			}
			s[0].must(b.message('x', i))
			<-done
			if r.err != nil || !r.Got || len(r.bytes) != i {
				b.Errorf("received %+v, want %d bytes", r, i)
			}
		}
	}
}

func othersRun(b *bed) {
	for _, s := range b.both() {
		received := s[0].start(func() {
			if r := s[0].receive(); r.err != nil || len(r.bytes) != 5 {
				b.Errorf("received %+v, want a message of 5 bytes", r)
			}
		})
		if over(received) {
			b.Fatal("the receiver did not wait")
		}
		<-s[0].start(func() {})
		s[1].must(b.message('a', 5))
		<-received
	}
}

func captured(b *bed) {
	for _, parked := range []bool{true, false} {
		for _, s := range b.both() {
			var r result
			receive := func() { r = s[1].receive() }
			var done <-chan struct{}
			if parked {
				done = s[1].start(receive)
				settle()
			}
			m := wrapperspb.Bytes([]byte("aaaa"))
			f := &link.Frame{Msg: message.Live(m, b.suite.Codec), HasMsg: true}
			<-s[0].start(func() {
				if err := s[0].Send(f); err != nil {
					b.Error(err)
				}
				copy(m.Value, "bbbb")
				m.Value = nil
				*f = link.Frame{}
			})
			if !parked {
				done = s[1].start(receive)
			}
			<-done
			if string(r.bytes) != "aaaa" {
				b.Errorf("%q arrived", r.bytes)
			}
		}
	}
}

// headerStays checks that a transport writes neither to a header that is sent, which may be that of
// other calls, too, nor to its values.
func headerStays(b *bed) {
	header := metadata.MD{"k": {"v", "w"}, link.EncodingKey: {"identity"}}
	want := header.Copy()
	b.callee.must(&link.Frame{Header: header})
	f := b.message('a', 5)
	f.End = &link.End{}
	b.callee.must(f)
	if r := b.caller.wants('a', 5); !slices.Equal(r.Header["k"], want["k"]) {
		b.Errorf("header %v", r.Header)
	}
	if !maps.EqualFunc(header, want, slices.Equal) {
		b.Errorf("the header was changed to %v", header)
	}
}

func withoutDst(b *bed) {
	f := b.message('a', 5)
	f.Header = metadata.MD{"k": {"v"}}
	b.callee.must(f)
	b.callee.must(&link.Frame{End: &link.End{}})
	settle()
	var got link.Frame
	for range 3 { // Recv without Dst must not consume the message
		var one link.Frame
		<-b.caller.start(func() {
			if err := b.caller.Recv(&one); err != nil {
				b.Error(err)
			}
		})
		if one.Got || one.End != nil {
			b.Fatalf("received %+v, which had to stay", one)
		}
		if one.Header != nil {
			got.Header = one.Header
		}
	}
	if got.Header == nil {
		b.Error("the header did not come without its message")
	}
	r := b.caller.wants('a', 5)
	if r.End != nil {
		return
	}
	var end link.Frame
	<-b.caller.start(func() {
		if err := b.caller.Recv(&end); err != nil {
			b.Error(err)
		}
	})
	if end.End == nil {
		b.Errorf("received %+v, want the end", end)
	}
}

func sendError(b *bed) {
	for _, s := range b.both() {
		bad := &link.Frame{Msg: message.Live(wrapperspb.String("\xff"), b.suite.Codec), HasMsg: true}
		var refused *message.SendError
		if err := s[0].send(bad); !errors.As(err, &refused) {
			b.Errorf("Send returns %v, want a SendError", err)
		}
		var r result
		done := s[1].start(func() { r = s[1].receive() })
		settle()
		if err := s[0].send(bad); !errors.As(err, &refused) {
			b.Errorf("Send to a parked receiver returns %v, want a SendError", err)
		}
		if over(done) {
			b.Fatalf("the receiver got %+v", r)
		}
		s[0].must(b.message('a', 5))
		<-done
		if r.err != nil || string(r.bytes) != "aaaaa" {
			b.Errorf("after a SendError the receiver gets %+v", r)
		}
	}
}

func recvError(b *bed) {
	for _, parked := range []bool{true, false} {
		for _, s := range b.both() {
			var err error
			small := func() {
				f := &link.Frame{Sink: b.sink(new(wrapperspb.BytesValue))}
				f.Limit = 100
				for err = s[1].Recv(f); err == nil && !f.Got; {
					err = s[1].Recv(f)
				}
			}
			var done <-chan struct{}
			if parked {
				done = s[1].start(small)
				settle()
			}
			s[0].must(b.message('a', 200))
			s[0].must(b.message('b', 50))
			if !parked {
				settle()
				done = s[1].start(small)
			}
			<-done
			var refused *message.RecvError
			if !errors.As(err, &refused) || refused.Size != 203 || refused.Limit != 100 || refused.Err != nil {
				b.Errorf("Recv returns %v, want a RecvError with size and limit", err)
			}
			s[1].wants('b', 50)

			// Bytes that do not decode as the receiver's type.
			s[0].must(&link.Frame{Msg: message.Live(wrapperspb.Bytes([]byte{0xff}), b.suite.Codec), HasMsg: true})
			s[0].must(b.message('c', 50))
			<-s[1].start(func() {
				f := &link.Frame{Sink: b.sink(new(wrapperspb.StringValue))}
				err = s[1].Recv(f)
			})
			if !errors.As(err, &refused) || refused.Err == nil {
				b.Errorf("Recv returns %v, want a RecvError", err)
			}
			s[1].wants('c', 50)
		}
	}
}

func otherType(b *bed) {
	for _, s := range b.both() {
		s[0].must(b.message('a', 5))
		m := new(wrapperspb.StringValue)
		<-s[1].start(func() {
			if err := s[1].message(&link.Frame{Sink: b.sink(m)}); err != nil {
				b.Error(err)
			}
		})
		if m.Value != "aaaaa" {
			b.Errorf("%q arrived", m.Value)
		}
	}
}

// order sends many messages of random sizes in both directions at once.
func order(b *bed) {
	n := needs.Rounds(500)
	var all []<-chan struct{}
	for i, s := range b.both() {
		size := func() func() int {
			r := rand.New(rand.NewPCG(uint64(i), 0))
			return func() int {
				switch r.IntN(20) {
				case 0:
					return r.IntN(2 * b.suite.Window)
				case 1:
					return 0
				}
				return r.IntN(2000)
			}
		}
		send, want := size(), size()
		all = append(all, s[0].start(func() {
			for i := range n {
				if err := s[0].Send(b.message(byte(i), send())); err != nil {
					b.Errorf("message %d: %v", i, err)
					return
				}
			}
		}), s[1].start(func() {
			for i := range n {
				r := s[1].receive()
				if k := want(); r.err != nil || len(r.bytes) != k || k > 0 && (r.bytes[0] != byte(i) || r.bytes[k-1] != byte(i)) {
					b.Errorf("message %d: received %d bytes and %v, want %d", i, len(r.bytes), r.err, k)
					return
				}
			}
		}))
	}
	for _, done := range all {
		<-done
	}
}

// mixedSizes sends messages of 0 bytes to 20 windows, first one way and then both ways, to receivers
// that pause.
func mixedSizes(b *bed) {
	for seed := range uint64(2) {
		b := b.again()
		var all []<-chan struct{}
		for i, s := range b.both() {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			sizes := []int{b.suite.Window * (10 + r.IntN(10))} // a window that can grow does
			for range 10 {
				sizes = append(sizes, r.IntN(b.suite.Window*[]int{1, 4, 10}[r.IntN(3)]))
			}
			sent := s[0].start(func() {
				for i, n := range sizes {
					if err := s[0].Send(b.message(byte(i), n)); err != nil {
						b.Errorf("message %d of %d bytes: %v", i, n, err)
						return
					}
				}
			})
			received := s[1].start(func() {
				for i, n := range sizes {
					time.Sleep(time.Duration(r.IntN(4)/3) * time.Duration(r.IntN(10)) * time.Millisecond)
					res := s[1].receive()
					if res.err != nil || len(res.bytes) != n || n > 0 && (res.bytes[0] != byte(i) || res.bytes[n-1] != byte(i)) {
						b.Errorf("message %d: received %d bytes and %v, want %d", i, len(res.bytes), res.err, n)
						return
					}
				}
			})
			if seed%2 == 0 {
				<-sent
				<-received
			}
			all = append(all, sent, received)
		}
		for _, done := range all {
			<-done
		}
	}
}

func afterEnd(b *bed) {
	b.caller.must(b.message('a', 5))
	settle()
	b.callee.must(&link.Frame{End: &link.End{}})
	settle()
	if err := b.caller.send(b.message('b', 5)); err != link.ErrEnded {
		b.Errorf("the caller's Send returns %v, want ErrEnded", err)
	}
	b.callee.wants('a', 5)
	if r := b.callee.recv(); r.err != link.ErrEnded {
		b.Errorf("the callee receives %+v, want ErrEnded", r)
	}
	if r := b.caller.recv(); r.err != nil || r.End == nil {
		b.Errorf("the caller receives %+v, want the end", r)
	}
}

// foreign is a codec that does not copy, so that messages must be decoded.
type foreign struct {
	message.Codec
	decoding chan struct{} // closed when Decode begins
	decode   chan struct{} // Decode waits until this is closed
}

func (f *foreign) Copy(dst, src any) (int, bool, error) { return 0, false, nil }
func (f *foreign) Copies(any) bool                      { return false }
func (f *foreign) New(any) any                          { return nil }
func (f *foreign) Move(dst, src any) bool               { return false }

func (f *foreign) Decode(data message.Data, v any) (bool, error) {
	close(f.decoding)
	<-f.decode
	return f.Codec.Decode(data, v)
}

// ownCodec tests that a codec never runs on the peer's goroutine: a slow Decode must
// not delay the sender.
func ownCodec(b *bed) {
	for _, parked := range []bool{true, false} {
		for _, s := range b.both() {
			c := &foreign{b.suite.Codec, make(chan struct{}), make(chan struct{})}
			got := new(wrapperspb.StringValue)
			receive := func() {
				if err := s[1].message(&link.Frame{Sink: message.Sink{Dst: got, Codec: c, Limit: 100}}); err != nil {
					b.Error(err)
				}
			}
			var done <-chan struct{}
			if parked {
				done = s[1].start(receive)
				settle()
			}
			// Send must return although Decode waits.
			s[0].must(&link.Frame{Msg: message.Live(wrapperspb.String("hello"), c), HasMsg: true})
			if !parked {
				done = s[1].start(receive)
			}
			<-c.decoding
			close(c.decode)
			<-done
			if got.Value != "hello" {
				b.Errorf("%q arrived", got.Value)
			}
		}
	}
}

// message receives into f until it has a message: a header may come alone.
func (s *side) message(f *link.Frame) error {
	for !f.Got {
		if err := s.Recv(f); err != nil || f.End != nil && !f.Got {
			return fmt.Errorf("received %+v: %v", f, err)
		}
	}
	return nil
}
