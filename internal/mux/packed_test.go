package mux

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/testing/transporttest"
	"github.com/nearcall/nearcall/internal/wire"
)

// unreceived returns how many messages are queued in the inbox.
func unreceived(st *stream) (n int) {
	st.session.mu.Lock()
	defer st.session.mu.Unlock()
	for _, it := range st.in.Items {
		if it.Message {
			n++
		}
		n += packed(it.Extra.behind, 0)
	}
	return n + packed(st.unpacked.pack, st.unpacked.at)
}

// packed returns how many messages are packed in b from at on.
func packed(b *buffer, at int) (n int) {
	for ; b != nil && at < len(b.B); n++ {
		head, k := binary.Uvarint(b.B[at:])
		at += k + int(head>>1)
	}
	return n
}

// numbered returns message number i, of n bytes.
func numbered(i, n int) []byte {
	b := bytes.Repeat([]byte{byte(i)}, n)
	if n > 1 {
		b[0] = byte(i >> 8)
	}
	return b
}

// framed returns the frames of a message: pieces of at most piecesOf bytes, or one
// frame if piecesOf is 0.
func framed(m []byte, piecesOf int) []byte {
	if piecesOf == 0 || piecesOf >= len(m) {
		return literal(msg, 1, m...)
	}
	b := literal(begins, 1, append(number(nil, len(m)), m[:piecesOf]...)...)
	for m = m[piecesOf:]; len(m) > piecesOf; m = m[piecesOf:] {
		b = append(b, literal(goesOn, 1, m[:piecesOf]...)...)
	}
	return append(b, literal(piece, 1, m...)...)
}

// TestMessagesArriveInOrderHoweverTheyWait sends messages whole or in pieces, to be
// packed or not, to receivers of varying speed that refuse some of them.
func TestMessagesArriveInOrderHoweverTheyWait(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			w := &witness{}
			s, peer := met(t, Options{}, w)
			peer.write(opened(1))
			st := w.first(t)
			var sent [][]byte
			received := 0
			take := func() {
				want := sent[received]
				received++
				limit := len(want)
				if limit > 0 && r.IntN(10) == 0 {
					limit-- // refuse it
				}
				got, err := receive(st, limit)
				var refused *message.RecvError
				if limit < len(want) {
					if !errors.As(err, &refused) || refused.Size != len(want) {
						t.Fatalf("message %d is not refused: %v", received-1, err)
					}
				} else if err != nil || !bytes.Equal(got, want) {
					t.Fatalf("message %d of %d is %q, want %q: %v", received-1, len(sent), got, want, err)
				}
			}
			for total := 0; total < wire.MinWindow+10_000; {
				most := []int{1, 3, 66, 300}[r.IntN(4)]
				if r.IntN(50) == 0 {
					most = maxPacked + 2
				}
				m := numbered(len(sent), r.IntN(1+most))
				total += len(m) + wire.MessageCost
				piecesOf := 0
				if r.IntN(3) == 0 {
					piecesOf = 1 + len(m)/(1+r.IntN(4))
				}
				sent = append(sent, m)
				peer.write(framed(m, piecesOf))
				for received < len(sent)-1 && (r.IntN(4) == 0 || len(sent)-received > 100 && r.IntN(20) != 0) {
					take()
				}
			}
			if r.IntN(2) == 0 {
				sent = append(sent, nil)
				peer.write(literal(msg|wire.FlagEnd, 1))
			} else {
				peer.write(literal(finish, 1))
			}
			if got := unreceived(st.(*stream)); got != len(sent)-received {
				t.Fatalf("%d messages wait, want %d", got, len(sent)-received)
			}
			for received < len(sent) {
				take()
			}
			var b []byte
			f := &link.Frame{Sink: message.Sink{Dst: &b, Codec: rawCodec, Limit: 1}}
			in := &st.(*stream).in
			if len(in.Items) > 0 { // otherwise it came with the last message
				if err := st.Recv(f); err != nil || !f.EndSend || f.Got {
					t.Errorf("after the last: %+v, %v", f, err)
				}
			}
			if !in.Closed || len(in.Items) > 0 {
				t.Errorf("%d items are left", len(in.Items))
			}
			if err := st.Send(&link.Frame{End: &link.End{}}); err != nil {
				t.Error(err)
			}
			synctest.Wait()
			empty(t, s)
		})
	}
}

// TestSmallCompressedMessagesThatWait mixes compressed and uncompressed packed
// messages.
func TestSmallCompressedMessagesThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		accepted := make(transporttest.Accepter, 1)
		cs, ss := pair(t, Options{}, Options{}, accepted)
		caller, callee := call(t, cs, accepted, "gzip")
		const n = 100
		for i := range n {
			send(t, caller, []byte(fmt.Sprint(i))[:min(i%3, len(fmt.Sprint(i)))])
		}
		synctest.Wait()
		if got := unreceived(callee); got != n || len(callee.in.Items) != 1 {
			t.Errorf("%d messages wait, in %d items", got, len(callee.in.Items))
		}
		for i := range n {
			wants(t, callee, []byte(fmt.Sprint(i))[:min(i%3, len(fmt.Sprint(i)))])
		}
		even(t, cs, ss, [2]*stream{caller, callee})
	})
}
