package mux

import (
	"bytes"
	"context"
	"errors"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/wire"
)

// An answerer echoes each message of a call, and ends the call after the last.
type answerer struct{ witness }

func (a *answerer) HandleStream(s link.Stream, o *link.CallHeader) error {
	if len(o.Method)%5 == 4 {
		return errors.New("refused")
	}
	a.watch(s)
	go answer(s)
	return nil
}

func answer(s link.Stream) {
	if err := s.Send(&link.Frame{Header: metadata.MD{"k": {"v"}}}); err != nil {
		return
	}
	var b []byte
	f := &link.Frame{Sink: message.Sink{Dst: &b, Codec: rawCodec, Limit: 1 << 20}}
	for !f.EndSend && f.End == nil {
		err := s.Recv(f)
		var refused *message.RecvError
		if err != nil && !errors.As(err, &refused) {
			return
		}
		if err == nil && f.Got {
			m := ofBytes(len(b))
			if s.Send(&link.Frame{Msg: m, HasMsg: true}) != nil {
				return
			}
		}
	}
	_ = s.Send(&link.Frame{End: &link.End{Status: status.New(codes.NotFound, "no")}})
}

// FuzzSession checks that whatever a peer writes, in one piece or two, the session ends
// as soon as the peer hangs up and leaves nothing behind, and that everything the
// session writes is valid frames.
func FuzzSession(f *testing.F) {
	var enc wire.Encoder
	var calls []byte
	for i, size := range []int{5, 70_000} {
		id := uint64(1 + 2*i)
		o := &link.CallHeader{Method: "/a/b", Profile: &link.Profile{Encoding: "gzip"}, Metadata: metadata.MD{"k": {"v"}}}
		for s := (&wire.Step{Stream: id, Open: o, HasMessage: true, Message: fill(size), HalfClose: true}); !s.Done(); {
			calls, _ = enc.Append(calls, s, 30_000)
		}
	}
	add := func(b ...[]byte) {
		all := slices.Concat(b...)
		for _, server := range []bool{true, false} {
			f.Add(all, true, server, uint16(len(all)/2))
		}
	}
	add()
	add(calls)
	add(opened(1), literal(begins, 1, 9, 1), literal(goesOn, 1, 2, 3), wire.AppendCredit(nil, 0, 70_000), literal(piece, 1, fill(6)...), literal(finish, 1))
	add(opened(1), literal(begins, 1, 0xff, 0xff, 0xff, 0x7f, 1), literal(goesOn, 1, 2, 3))
	add(opened(1), literal(compressed, 1, []byte("garbage")...), wire.AppendReset(nil, 1, 0, ""), opened(3), literal(finish, 3))
	other, _ := enc.Append(nil, &wire.Step{Stream: 1, Header: metadata.MD{link.EncodingKey: {"gzip"}}, HasMessage: true, Message: []byte("garbage"), Compressed: true, End: &link.End{}}, 100)
	add(other)
	add(opened(2), literal(msg, 2, 1), wire.AppendCredit(nil, 2, 5), wire.AppendDrain(nil, 1), literal(finish, 2))
	add(literal(head, 1, 1, 0, 1, 'k', 1, 'v'), literal(msg, 1, 1), literal(finish, 1, 5, 0, 0, 0))
	add(literal(msg|wire.FlagHead|wire.FlagEnd, 1, 0, 0, 0, 'm'), wire.AppendDrain(nil, 3))
	add(literal(wire.KindPart, 1, opens[:3]...), literal(head, 1, opens[3:]...), wire.AppendPing(nil, wire.KindPing, [8]byte{}), literal(0x40, 7, 1))
	add(whole(7, 1, 2), literal(msg, 9, 1), literal(begins, 9, 5, 1), literal(msg, 11, fill(101)...)) // once caused a panic
	add(literal(msg, 7, 1), literal(head, 7, 0), literal(msg, 7, 1), literal(begins, 9, 50, 1), literal(goesOn, 9, 2), literal(finish, 9, 0, 0))
	add(literal(begins, 1, 9, 1), literal(head|wire.FlagPiece, 1, 0, 0)) // once made a receiver wait forever
	add(wire.AppendBye(nil, wire.ByeClosed, "bye"), opened(1))
	for _, b := range [][]byte{[]byte("PRI * HTTP/2.0\r\n"), settings, []byte("HTTP/1.1 400 Bad Request"), {0x15, 3, 1, 0, 2, 2, 70}, start(), []byte(wire.Magic)} {
		f.Add(b, false, true, uint16(1))
	}
	f.Fuzz(func(t *testing.T, b []byte, greet, server bool, cut uint16) {
		synctest.Test(t, func(t *testing.T) {
			if greet {
				b = append(start(), b...)
			}
			fuzzSession(t, b, server, min(int(cut), len(b)))
		})
	})
}

func fuzzSession(t *testing.T, b []byte, server bool, cut int) {
	began, w := time.Now(), &answerer{}
	mine, peers := net.Pipe()
	s := newSession(mine, Options{Client: !server, Config: configured(!server, func(c *options.Connections) { c.MaxStreams = 10 })})
	peer := &raw{T: t, conn: peers, read: make(chan struct{})}
	go peer.readAll()
	s.Start(w)
	var calls []<-chan made
	if !server {
		for i := range 3 {
			st, err := s.NewStream(context.Background(), &link.CallHeader{Method: "/a/b", Profile: &link.Profile{}})
			if err != nil {
				t.Fatal(err)
			}
			go answer(st)
			if i == 2 {
				go st.Abort(errors.New("enough"))
			}
		}
		for i := range 3 { // these become calls 7, 9 and 11
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			calls = append(calls, makes(ctx, s, "/a/b", 10, 100))
			if synctest.Wait(); i == 2 {
				go cancel()
			}
		}
	}
	synctest.Wait()
	peer.write(b[:cut])
	peer.write(b[cut:])
	_ = peers.Close()
	<-s.Gone()
	<-peer.read
	if len(w.closed) != 1 || !link.IsClosed(s.Ended()) {
		t.Errorf("the acceptor is told of the end %d times", len(w.closed))
	}
	for i, out := range calls {
		got := <-out
		if got.err == nil && (len(got.reply) > 100 || got.call.ReplyError != nil && got.call.Replied) {
			t.Errorf("call %d: %d bytes, %v, %v", i, len(got.reply), got.call.Replied, got.call.ReplyError)
		}
		if got.err != nil && (got.call.Replied || got.reply != nil && !writes(got.err)) {
			t.Errorf("call %d: %d bytes, %v", i, len(got.reply), got.err)
		}
	}
	s.mu.Lock()
	if len(s.live) > 0 || s.roles.Waiting != 0 || s.ownCalls != 0 {
		t.Errorf("%v is left, %d wait, %d calls are admitted", len(s.live), s.roles.Waiting, s.ownCalls)
	}
	s.mu.Unlock()
	if took := time.Since(began); took > 0 {
		t.Errorf("it ends after %v, for %v", took, w.closed)
	}
	wrote, ok := bytes.CutPrefix(peer.got, []byte(wire.Magic))
	for ok && len(wrote) > 0 {
		_, n, err := wire.Next(wrote)
		if err != nil {
			t.Fatalf("it writes what is no frame: %v", err)
		}
		if n == 0 {
			break // the last frame was cut off
		}
		wrote = wrote[n:]
	}
}
