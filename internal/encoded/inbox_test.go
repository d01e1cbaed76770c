package encoded

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

// The steps of the tests.
var (
	head      = wire.Received{Header: metadata.MD{}}
	whole     = wire.Received{Begins: true, Size: 2, Data: []byte("ab")}
	first     = wire.Received{Begins: true, More: true, Size: 3, Data: []byte("ab")}
	last      = wire.Received{Goes: true, Data: []byte("c")}
	halfClose = wire.Received{HalfClose: true}
	end       = wire.Received{End: &link.End{}}
)

// arrives adds steps to in. It returns the error of the last of them, and fails if another has one.
func arrives(t *testing.T, in *Inbox[struct{}], steps ...wire.Received) error {
	t.Helper()
	var err error
	for i := range steps {
		if err != nil {
			t.Fatal(err)
		}
		rc := &steps[i]
		if err = in.Check(rc); err != nil {
			continue
		}
		in.AddHeader(rc)
		if rc.Begins || rc.Goes {
			in.AddMessage(rc, new(Keeper))
		}
		in.AddEnd(rc)
	}
	return err
}

func TestStepsAgainstTheRules(t *testing.T) {
	short := wire.Received{Goes: true, More: true, Data: []byte("c")}
	long := wire.Received{Goes: true, Data: []byte("cd")}
	for name, c := range map[string]struct {
		steps []wire.Received
		want  string
	}{
		"header twice":              {[]wire.Received{head, head}, "the header of a call comes twice"},
		"header within a message":   {[]wire.Received{first, head}, "the header of a call comes within a message"},
		"message after the end":     {[]wire.Received{end, whole}, "after the end of sending"},
		"piece after half-close":    {[]wire.Received{halfClose, last}, "after the end of sending"},
		"message within another":    {[]wire.Received{first, whole}, "out of order"},
		"piece of no message":       {[]wire.Received{whole, last}, "out of order"},
		"half-close twice":          {[]wire.Received{halfClose, halfClose}, "the end of sending comes twice"},
		"half-close in a message":   {[]wire.Received{first, halfClose}, "within a message"},
		"end within a message":      {[]wire.Received{first, end}, "within a message"},
		"message that stays short":  {[]wire.Received{{Begins: true, More: true, Size: 1, Data: []byte("a")}}, "of its size"},
		"pieces that are too short": {[]wire.Received{first, short}, "of its size"},
		"pieces that are too long":  {[]wire.Received{first, long}, "of its size"},
	} {
		t.Run(name, func(t *testing.T) {
			err := arrives(t, new(Inbox[struct{}]), c.steps...)
			if !errors.Is(err, wire.ErrProtocol) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestPiecesOfARefusedMessage checks that the rest of a refused message is checked as if it were
// received.
func TestPiecesOfARefusedMessage(t *testing.T) {
	for name, c := range map[string]struct {
		step wire.Received
		ok   bool
	}{
		"the last piece":  {last, true},
		"another message": {whole, false},
		"the end":         {end, false},
		"a header":        {head, false},
	} {
		t.Run(name, func(t *testing.T) {
			var in Inbox[struct{}]
			if err := arrives(t, &in, first); err != nil {
				t.Fatal(err)
			}
			if it := in.RemoveMessage(); it.Missing != 1 || in.Skip != 1 || !in.MidMessage() {
				t.Fatalf("%d bytes are missing, and %d are skipped", it.Missing, in.Skip)
			}
			if err := arrives(t, &in, c.step); (err == nil) != c.ok {
				t.Fatalf("got %v", err)
			}
			if c.ok && (in.MidMessage() || len(in.Items) > 0) {
				t.Errorf("%d bytes are left to skip, and %d items to receive", in.Skip, len(in.Items))
			}
		})
	}
}

// TestRepliesStayWhenMoreArrives checks that what arrives after Collect does not touch the replies,
// which are decoded without the owner's lock.
func TestRepliesStayWhenMoreArrives(t *testing.T) {
	for name, before := range map[string][]wire.Received{
		"a second reply": {head, whole, whole},
		"a third reply":  {head, whole, whole, whole},
	} {
		t.Run(name, func(t *testing.T) {
			var in Inbox[struct{}]
			if err := arrives(t, &in, before...); err != nil {
				t.Fatal(err)
			}
			c := &link.UnaryCall{CallHeader: link.CallHeader{MaxReply: 2}}
			if !in.Replied(c.MaxReply) {
				t.Fatal("the caller goes on waiting")
			}
			replies, wrong := in.Collect(c)
			if wrong != link.ErrReplies || len(replies) != 2 || c.Header == nil {
				t.Fatalf("%d replies, %v", len(replies), wrong)
			}
			other := wire.Received{Begins: true, Size: 2, Data: []byte("xy")}
			if err := arrives(t, &in, other, other, first); err != nil {
				t.Fatal(err)
			}
			in.Close(errors.New("the call was aborted"))
			for _, it := range replies {
				if string(it.Data.B) != "ab" || !it.Message || it.Missing != 0 {
					t.Errorf("a reply became %q", it.Data.B)
				}
			}
		})
	}
}
