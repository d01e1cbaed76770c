package hostile

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
)

// A witness accepts streams and records how the session ends.
type witness struct {
	streams []link.Stream
	closed  atomic.Int32
	reason  error
	refuse  error
}

func (w *witness) HandleUnary(*link.UnaryCall, bool) error { return link.ErrNoCall }

func (w *witness) HandleStream(s link.Stream, _ *link.CallHeader) error {
	if w.refuse != nil {
		return w.refuse
	}
	w.streams = append(w.streams, s)
	return nil
}

func (w *witness) Terms() link.Terms { return link.Terms{} }

func (w *witness) Closed(reason error) { w.reason = reason; w.closed.Add(1) }
func (*witness) Gone()                 {}

// lone returns one side of a session, and the peer's end of its pipe. acceptor is nil for
// the client's side.
func lone(acceptor link.Acceptor, o Options) (*session, net.Conn) {
	mine, peers := net.Pipe()
	s := newSession("lone", newPipe(mine, o.withDefaults(), 1, &shared{hurry: make(chan struct{})}))
	s.start(acceptor)
	return s, peers
}

// encoded returns frames as they are written.
func encoded(frames ...frame) []byte {
	var b []byte
	for i := range frames {
		b = appendFrame(b, &frames[i])
	}
	return b
}

// feed reads and discards all that the session writes, writes b, closes the pipe, and waits
// until nothing more happens.
func feed(peer net.Conn, b []byte) {
	go func() { _, _ = io.Copy(io.Discard, peer) }()
	synctest.Wait()
	_, _ = peer.Write(b)
	synctest.Wait()
	_ = peer.Close()
	synctest.Wait()
}

var (
	open1 = frame{kind: kindOpen, id: 1, open: link.CallHeader{Method: "/a/b", Profile: &link.Profile{}}}
	whole = frame{kind: kindData, id: 1, flags: flagLast, data: []byte("message")}
	last  = frame{kind: kindData, id: 1, flags: flagLast | flagEndSend}
	part  = frame{kind: kindData, id: 1, data: []byte("part")}
)

// TestFramesOfEndedStreams: a peer might not know yet that a stream has ended.
func TestFramesOfEndedStreamsAreIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		_, peer := lone(w, Options{})
		go func() { _, _ = io.Copy(io.Discard, peer) }()
		_, _ = peer.Write(encoded(open1))
		synctest.Wait()
		if err := w.streams[0].Send(&link.Frame{End: &link.End{}}); err != nil {
			t.Fatal(err)
		}
		_, _ = peer.Write(encoded(whole, part, last, whole, frame{kind: kindCredit, id: 1, n: 5}, frame{kind: kindReset, id: 1}))
		synctest.Wait()
		if w.closed.Load() != 0 {
			t.Errorf("the session ended: %v", w.reason)
		}
		_ = peer.Close()
	})
}

func TestCallsThatThePeerNeverSawAreUnprocessed(t *testing.T) {
	open := func(t *testing.T, s *session) *error {
		st, err := s.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}})
		if err != nil {
			t.Fatal(err)
		}
		reason := new(error)
		st.OnAbort(func(err error) { *reason = err })
		return reason
	}
	t.Run("not written", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, peer := lone(nil, Options{})
			first := open(t, s)
			synctest.Wait() // the writer blocks on the first, which is never read
			second := open(t, s)
			_ = peer.Close()
			synctest.Wait()
			if errors.Is(*first, link.ErrUnprocessed) || *first == nil {
				t.Errorf("the first ends with %v", *first)
			}
			if !errors.Is(*second, link.ErrUnprocessed) {
				t.Errorf("the second ends with %v, want ErrUnprocessed", *second)
			}
		})
	})
	t.Run("not read", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, peer := lone(nil, Options{})
			one, other := open(t, s), open(t, s)
			feed(peer, encoded(frame{kind: kindBye, n: 1}))
			if *one == nil || *other == nil {
				t.Fatalf("they end with %v and %v", *one, *other)
			}
			if errors.Is(*one, link.ErrUnprocessed) == errors.Is(*other, link.ErrUnprocessed) {
				t.Errorf("they end with %v and %v, want one ErrUnprocessed", *one, *other)
			}
		})
	})
	t.Run("after a drain", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := &witness{}
			s, peer := lone(w, Options{})
			s.Drain()
			go func() { _, _ = peer.Write(encoded(open1)) }()
			answers := newPipe(peer, Options{}, 0, &shared{})
			drain, buf, err := answers.read(nil)
			if err != nil || drain.kind != kindDrain {
				t.Errorf("the peer reads %+v, %v", drain, err)
			}
			reset, _, err := answers.read(buf)
			if err != nil || reset.kind != kindReset || reset.id != 1 || reset.code != codeUnprocessed {
				t.Errorf("the peer reads %+v, %v", reset, err)
			}
			if len(w.streams) > 0 {
				t.Error("the acceptor was asked")
			}
			_ = peer.Close()
			synctest.Wait()
		})
	})
	t.Run("refused", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := &witness{refuse: link.Unprocessed{Err: status.Error(codes.Unavailable, "busy")}}
			l := Listen("x", Options{})
			go func() { _ = l.Sessions(func(link.Session) link.Acceptor { return w }) }()
			s, err := l.Dialer().Dial(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			reason := open(t, s.(*session))
			synctest.Wait()
			if !errors.Is(*reason, link.ErrUnprocessed) {
				t.Errorf("the stream ends with %v, want ErrUnprocessed", *reason)
			}
			_ = s.Close(errors.New("done"))
			_ = l.Close()
		})
	})
}

// FuzzSession: whatever a peer writes, the session ends when it hangs up.
func FuzzSession(f *testing.F) {
	all := someFrames()
	f.Add(encoded(all...), true)
	f.Add(encoded(all...), false)
	f.Add(encoded(open1, part, whole, last, frame{kind: kindReset, id: 1}), true)
	f.Add(encoded(frame{kind: kindHeader, id: 1}, part, whole, frame{kind: kindEnd, id: 1}), false)
	f.Add(bytes.Repeat(encoded(open1, part), 3), true)
	f.Fuzz(func(t *testing.T, b []byte, server bool) {
		synctest.Test(t, func(t *testing.T) {
			if server {
				w := &witness{}
				_, peer := lone(w, Options{})
				feed(peer, b)
				if w.closed.Load() != 1 {
					t.Errorf("the acceptor was told of the end %d times", w.closed.Load())
				}
				return
			}
			s, peer := lone(nil, Options{})
			if _, err := s.NewStream(context.Background(), &link.CallHeader{Profile: &link.Profile{}}); err != nil {
				t.Fatal(err)
			}
			feed(peer, b)
			if s.ended == nil || len(s.live) > 0 {
				t.Errorf("ended: %v, with %d streams left", s.ended, len(s.live))
			}
		})
	})
}
