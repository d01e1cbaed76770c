package actor

import (
	"testing"

	"google.golang.org/grpc/codes"

	pb "github.com/nearcall/nearcall/examples/actor/actorpb"
)

// A full line ends and drops its messages.
func TestALineThatIsFullEnds(t *testing.T) {
	l := &line[int]{limit: 2}
	if !l.put(1) || !l.put(2) || l.ended {
		t.Fatal("the line has ended before it was full")
	}
	if l.put(3) || !l.ended || l.queue != nil {
		t.Errorf("ended is %t, and it holds %v", l.ended, l.queue)
	}
	wantCode(t, l.err, codes.ResourceExhausted)
	if !l.put(4) || l.queue != nil {
		t.Errorf("a line that has ended holds %v", l.queue)
	}
}

// The first error that ends a line before all messages were sent counts.
func TestTheFirstEndOfALineCounts(t *testing.T) {
	l := &line[int]{limit: 2}
	l.put(1)
	l.close(nil)
	l.abort(errClosed)
	l.abort(nil)
	l.close(nil)
	if l.err != errClosed {
		t.Errorf("the line ends with %v", l.err)
	}
}

// If an order trades with another order of the same trader and the trader's line is full, all
// of its open orders are withdrawn while the trade is being settled.
func TestALineThatFillsUpWithinATrade(t *testing.T) {
	for limit := range 6 {
		x := NewExchange(nil) // nil: no task waits in this test
		ann := &trader{open: make(map[uint64]*order), line: line[*pb.Event]{limit: limit}}
		for i, o := range []*pb.Order{
			{Side: selling, Price: 100, Quantity: 5}, {Side: selling, Price: 101, Quantity: 5}, {Side: buying, Price: 101, Quantity: 7},
		} {
			if !ann.line.closed {
				o.Id = uint64(i) + 1
				x.place(ann, o)
				check(t, &x.book)
			}
		}
		if wantEnd := limit < 4; ann.line.ended != wantEnd || wantEnd && (len(ann.open) > 0 || x.book.asks.best() != nil) {
			t.Errorf("with room for %d messages the line's end is %t, and %d orders are open", limit, ann.line.ended, len(ann.open))
		}
	}
}
