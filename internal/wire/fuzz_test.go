package wire

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
)

// FuzzFrames decodes the input as a callee and as a caller. Every step that can be
// decoded is encoded and decoded again.
func FuzzFrames(f *testing.F) {
	var e Encoder
	var b []byte
	for _, s := range []*Step{
		{Stream: 1, Open: open("/p.S/M", metadata.Pairs("k", "v", "raw-bin", "\x00")), HasMessage: true, Message: []byte("ping"), HalfClose: true},
		{Stream: 1, HasMessage: true, Message: make([]byte, 100)},
	} {
		for credit := 40; !s.Done(); credit *= 2 {
			b, _ = e.Append(b, s, credit)
		}
	}
	f.Add(b, true)
	b, _ = e.Append(nil, &Step{Stream: 1, Open: &link.CallHeader{Method: "/p.S/M", Profile: &link.Profile{Authority: "a", Encoding: "gzip", Accept: "gzip,zstd"}}, HalfClose: true}, 0)
	f.Add(b, true)
	b, _ = e.Append(nil, &Step{Stream: 1, Header: metadata.MD{link.EncodingKey: {"zstd"}}, HasMessage: true, Message: []byte("ping"), Compressed: true, End: &link.End{}}, 100)
	f.Add(b, false)
	b = AppendReset(AppendCredit(AppendHello(nil, &Hello{Version: 1, Stream: MinWindow, Connection: MinWindow, Block: MinBlock}), 0, 5), 1, ResetDeadline, "late")
	b = AppendBye(AppendDrain(AppendPing(b, KindPing, [8]byte{1}), 3), ByeDone, "done")
	f.Add(b, false)
	f.Add(AppendStay(AppendHello(nil, &Hello{Version: 1, Features: FeatureNear, Stream: MinWindow, Connection: MinWindow, Block: MinBlock, Near: "an offer"})), false)
	f.Fuzz(func(t *testing.T, b []byte, fromCaller bool) {
		d := Decoder{Places: true}
		parts := make(map[uint64][]byte)
		for {
			fr, n, err := Next(b)
			if err != nil || n == 0 {
				if err != nil && !errors.Is(err, ErrProtocol) {
					t.Fatalf("%v is no protocol error", err)
				}
				return
			}
			b = b[n:]
			if err := fuzzFrame(t, &d, fr, parts, fromCaller); err != nil {
				if !errors.Is(err, ErrProtocol) {
					t.Fatalf("%v is no protocol error", err)
				}
				return
			}
		}
	})
}

func fuzzFrame(t *testing.T, d *Decoder, f Frame, parts map[uint64][]byte, fromCaller bool) error {
	switch f.Kind {
	case KindHello:
		h, err := ParseHello(f.Body)
		if again, _ := ParseHello(one(t, AppendHello(nil, &h)).Body); err == nil && again != h {
			t.Fatalf("%+v becomes %+v", h, again)
		}
		return err
	case KindReset:
		return third(ParseReset(f.Body))
	case KindBye:
		return third(ParseBye(f.Body))
	case KindCredit:
		return second(ParseCredit(f.Body))
	case KindReturn:
		return second(ParseReturn(f.Body))
	case KindPing, KindPong:
		return second(ParsePing(f.Body))
	case KindDrain:
		return second(ParseDrain(f.Body))
	case KindPart:
		parts[f.Stream] = append(parts[f.Stream], f.Body...)
		return nil
	}
	if !f.Kind.Stream() {
		return nil
	}
	rc, err := d.Stream(f, parts[f.Stream], fromCaller)
	delete(parts, f.Stream)
	if err != nil {
		return err
	}
	if rc.Begins && !rc.More && !rc.Placed && rc.Size != len(rc.Data) || rc.Placed && (!rc.Begins || len(rc.Data) > 0) || rc.More && len(rc.Data) == 0 {
		t.Fatalf("%+v", rc)
	}
	if rc.Wrong != nil { // no encoder produces it
		return nil
	}
	s := &Step{Stream: f.Stream, Open: rc.Open, Timeout: rc.Timeout, Header: rc.Header, End: rc.End, HalfClose: rc.HalfClose}
	want := said(rc.Open, rc.Header, rc.End)
	var e Encoder
	l := &listen{TB: t, fromCaller: fromCaller}
	for !s.Done() {
		again, _ := e.Append(nil, s, 0)
		for _, f := range frames(t, again) {
			l.frame(f)
		}
	}
	if got := l.heard; got.Method != want.Method || got.Metadata != want.Metadata || got.Header != want.Header || got.Status != want.Status || got.Trailer != want.Trailer {
		t.Fatalf("%+v becomes %+v", want, got)
	}
	return nil
}

// said returns what the receiver of a step should get.
func said(o *link.CallHeader, header metadata.MD, end *link.End) (h heard) {
	l := &listen{}
	l.hear(Received{Open: o, Header: header, End: end})
	return l.heard
}

// FuzzAppendHead checks that AppendHead's output and tail are together what Append
// appends, for any step and credit.
func FuzzAppendHead(f *testing.F) {
	for _, size := range []uint32{0, 1, LargePiece - 1, LargePiece, LargePiece + 1, MaxFrame - 20, MaxFrame, 3 * MaxFrame} {
		for what := range byte(16) {
			f.Add(size, uint32(0), what, uint32(MaxFrame))
		}
	}
	f.Add(uint32(70_000), uint32(MaxFrame), byte(0x0f), uint32(LargePiece+MessageCost))
	f.Add(uint32(70_000), uint32(3*MaxFrame), byte(0x1f), uint32(MessageCost))
	f.Add(uint32(70_000), uint32(60_000), byte(0x2f), uint32(1<<20))
	f.Fuzz(func(t *testing.T, size, block uint32, what byte, credit uint32) {
		size, block = size%(1<<18), block%(1<<18)
		message := make([]byte, size)
		for i := range message {
			message[i] = byte(i * 7)
		}
		step := func() *Step {
			s := &Step{Stream: 1 + 2*uint64(what>>6), Message: message, HasMessage: what&1 != 0, Compressed: what&0x10 != 0}
			md := metadata.MD{"k": {string(message[:min(block, size)])}}
			if what&0x20 != 0 { // as the caller
				if s.HalfClose = what&4 != 0; what&2 != 0 {
					s.Open, s.Timeout = open("/p.S/M", md), time.Duration(what)
				}
				return s
			}
			if what&2 != 0 {
				s.Header = md
			}
			if what&4 != 0 {
				s.End = &link.End{Trailer: md}
				if what&8 != 0 {
					s.End.Status = status.New(codes.NotFound, "no")
				}
			}
			return s
		}
		var e, eh Encoder
		for range 2 { // the second time, the names have numbers
			s, sh := step(), step()
			for n, credit := 0, int(credit); !s.Done(); n++ {
				if n > 1000 {
					credit = 1 << 30
				}
				want, cost := e.Append([]byte("before"), s, credit)
				got, tail, headCost := eh.AppendHead([]byte("before"), sh, credit)
				if tail != nil && (len(tail) < LargePiece || &tail[len(tail)-1] != &message[len(message)-len(sh.Message)-1]) {
					t.Fatalf("a piece of %d bytes is left, and is not the message's", len(tail))
				}
				if !bytes.Equal(append(got, tail...), want) || cost != headCost {
					t.Fatalf("%d bytes and %d become %d, for a cost of %d, want %d", len(got), len(tail), len(want), headCost, cost)
				}
			}
			if !sh.Done() || !bytes.Equal(message, step().Message) {
				t.Fatalf("%+v", sh)
			}
		}
	})
}
