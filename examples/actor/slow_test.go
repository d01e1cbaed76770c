package actor

import (
	"context"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"

	"github.com/nearcall/nearcall"
	pb "github.com/nearcall/nearcall/examples/actor/actorpb"
)

// patience is the number of trades within which a client that reads nothing must be ended.
// With the smallest flow-control window, the network buffers fewer messages than that.
const patience = 200_000

// shortLine is a limit of lines that tests reach quickly.
const shortLine = 1024

// shortens sets the line limit of sessions and feeds that begin later.
func (m *market) shortens(t *testing.T) {
	if err := m.loop.Post(func() { m.lineLimit = shortLine }); err != nil {
		t.Fatal(err)
	}
}

var minWindow = nearcall.WithInitialWindowSize(64 << 10)

// A batcher is a trader that reads all its answers.
type batcher struct {
	*session
	last uint64
}

const (
	batch  = 100
	marker = 1 << 60 // an id that no order uses
)

// trades sends a batch of orders and returns the number of fills. With side 0 the orders
// alternate between both sides, so that the trader trades with itself.
func (b *batcher) trades(side pb.Side) int {
	b.t.Helper()
	for i := range batch {
		b.last++
		each := side
		if each == 0 {
			each = pb.Side(1 + i%2)
		}
		b.send(ordering(b.last, each, 100, 1))
	}
	b.send(cancelling(marker))
	fills := 0
	for {
		e := b.receive()
		fills += len(e.GetFills().GetFills())
		if e.GetRejected().GetId() == marker {
			return fills
		}
	}
}

// The session of a trader that does not read is ended and its orders leave the book. No other
// trader waits for it.
func TestATraderThatDoesNotReadIsEnded(t *testing.T) {
	overAll(t, func(ctx context.Context, t *testing.T, m *market) {
		m.shortens(t)
		client, hangUp := m.dial(t)
		defer hangUp()
		own, cut := m.dial(t, minWindow)
		defer cut()
		slow := enter(ctx, t, own)
		slow.places(1, selling, 100, maxQuantity)
		bob := &batcher{session: enter(ctx, t, client)}
		filled := 0
		for {
			fills := bob.trades(buying) // each batch is answered
			filled += fills
			if fills < batch {
				break
			}
			if filled > patience {
				t.Fatalf("after %d fills the trader's session has not ended", filled)
			}
		}
		if filled < shortLine {
			t.Errorf("the session has ended after %d fills", filled)
		}
		received := 0
		for _, e := range slow.wantEnd(codes.ResourceExhausted) {
			received += len(e.GetFills().GetFills())
		}
		if received > filled-shortLine {
			t.Errorf("of %d fills %d were received: what waits is not bounded", filled, received)
		}
		book, err := client.Snapshot(ctx, &pb.SnapshotRequest{})
		if err != nil || len(book.Asks) > 0 {
			t.Errorf("the book is %v, %v", book, err)
		}
	})
}

func TestAWatcherThatDoesNotReadIsEnded(t *testing.T) {
	overAll(t, func(ctx context.Context, t *testing.T, m *market) {
		m.shortens(t)
		client, hangUp := m.dial(t)
		defer hangUp()
		own, cut := m.dial(t, minWindow)
		defer cut()
		slow := watch(ctx, t, own)
		bob := &batcher{session: enter(ctx, t, client)}
		watchers := make(chan int, 1)
		for traded := 0; ; traded += bob.trades(0) / 2 {
			if traded > patience {
				t.Fatalf("after %d trades the feed has not ended", traded)
			}
			if err := m.loop.Post(func() { watchers <- len(m.watchers) }); err != nil {
				t.Fatal(err)
			}
			if <-watchers == 0 {
				break
			}
		}
		for {
			if _, err := slow.Recv(); err != nil {
				wantCode(t, err, codes.ResourceExhausted)
				return
			}
		}
	})
}

// If a trader sends without reading, and only its own answers are on its line, its requests
// wait. No answer is lost.
func TestATraderThatOnlySendsIsKeptWaiting(t *testing.T) {
	const requests = 20_000
	inBubble(t, func(ctx context.Context, t *testing.T, client pb.OrderBookClient, m *market) {
		m.shortens(t)
		ann, bob := enter(ctx, t, client), &batcher{session: enter(ctx, t, client)}
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			for id := range uint64(requests) {
				if err := ann.stream.Send(cancelling(id)); err != nil {
					t.Error(err)
					return
				}
			}
		}()
		synctest.Wait()
		select {
		case <-sent:
			t.Errorf("%d requests were sent, and no answer read", requests)
		default:
		}
		if n := bob.trades(0); n != batch {
			t.Errorf("another has %d fills meanwhile, want %d", n, batch)
		}
		for id := range uint64(requests) {
			if got := ann.receive().GetRejected().GetId(); got != id {
				t.Fatalf("answer %d is to request %d", id, got)
			}
		}
		<-sent
	})
}

// The session of a trader whose requests wait is ended if fills of its orders fill its line.
func TestATraderThatOnlySendsIsEndedByItsFills(t *testing.T) {
	inBubble(t, func(ctx context.Context, t *testing.T, client pb.OrderBookClient, m *market) {
		m.shortens(t)
		ann, bob := enter(ctx, t, client), &batcher{session: enter(ctx, t, client)}
		ann.places(1, selling, 100, maxQuantity)
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			for ann.stream.Send(cancelling(99)) == nil {
			}
		}()
		synctest.Wait()
		for filled, fills := 0, batch; fills == batch; filled += fills {
			if fills = bob.trades(buying); filled > 2*shortLine {
				t.Fatalf("after %d fills the session has not ended", filled)
			}
		}
		<-sent
		ann.wantEnd(codes.ResourceExhausted)
	})
}
