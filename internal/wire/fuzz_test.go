package wire

import (
	"errors"
	"testing"

	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/link"
)

// FuzzFrames reads bytes as a peer would have sent them, as the callee and as
// the caller. Whatever could be read is appended and read again.
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
	b = AppendReset(AppendCredit(AppendHello(nil, &Hello{Version: 1, Stream: MinWindow, Connection: MinWindow, Block: MinBlock}), 0, 5), 1, ResetDeadline, "late")
	b = AppendBye(AppendDrain(AppendPing(b, KindPing, [8]byte{1}), 3), ByeDone, "done")
	f.Add(b, false)
	f.Fuzz(func(t *testing.T, b []byte, fromCaller bool) {
		var d Decoder
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
	if rc.Begins && !rc.More && rc.Size != len(rc.Data) || rc.More && len(rc.Data) == 0 {
		t.Fatalf("%+v", rc)
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

// said is what a listener is to hear of a step.
func said(o *link.Open, header metadata.MD, end *link.End) (h heard) {
	l := &listen{}
	l.hear(Received{Open: o, Header: header, End: end})
	return l.heard
}
