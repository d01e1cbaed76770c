package actor

import (
	"context"
	"io"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"

	pb "github.com/nearcall/nearcall/examples/actor/actorpb"
)

const (
	buying  = pb.Side_SIDE_BUY
	selling = pb.Side_SIDE_SELL
)

// inBubble runs f in a synctest bubble, for a market in process: after synctest.Wait, all
// effects of earlier calls are visible.
func inBubble(t *testing.T, f func(ctx context.Context, t *testing.T, client pb.OrderBookClient, m *market)) {
	synctest.Test(t, func(t *testing.T) {
		m := open(t, "")
		client, hangUp := m.dial(t)
		f(t.Context(), t, client, m)
		hangUp()
		m.shut(t)
	})
}

// Both traders and the feed receive a trade, whichever trader's order came second.
func TestAFillComesFromAnotherTradersOrder(t *testing.T) {
	overAll(t, func(ctx context.Context, t *testing.T, m *market) {
		client, hangUp := m.dial(t)
		defer hangUp()
		feed := watch(ctx, t, client)
		ann, bob := enter(ctx, t, client), enter(ctx, t, client)
		ann.places(1, selling, 100, 5)
		ann.places(2, selling, 101, 5)
		bob.places(7, buying, 101, 7)

		for _, f := range []struct {
			who  *session
			want []*pb.Fill
		}{
			{ann, []*pb.Fill{{Id: 1, Trade: 1, Price: 100, Quantity: 5}, {Id: 2, Trade: 2, Price: 101, Quantity: 2, Left: 3}}},
			{bob, []*pb.Fill{{Id: 7, Trade: 1, Price: 100, Quantity: 5, Left: 2}, {Id: 7, Trade: 2, Price: 101, Quantity: 2}}},
		} {
			same(t, f.who.receive(), &pb.Event{Kind: &pb.Event_Fills{Fills: &pb.Fills{Fills: f.want}}})
		}
		trades, err := feed.Recv()
		if err != nil {
			t.Fatal(err)
		}
		same(t, trades, &pb.Trades{Trades: []*pb.Trade{
			{Number: 1, Price: 100, Quantity: 5, Buy: 3, Sell: 1},
			{Number: 2, Price: 101, Quantity: 2, Buy: 3, Sell: 2},
		}})
		book, err := client.Snapshot(ctx, &pb.SnapshotRequest{})
		if err != nil {
			t.Fatal(err)
		}
		same(t, book, &pb.BookSnapshot{Sequence: 3, Asks: []*pb.Level{{Price: 101, Quantity: 3, Orders: 1}}})
		same(t, totals(ctx, t, client), &pb.BookTotals{
			Orders: 3, Filled: 2, Open: 1, OrderedQuantity: 17, BoughtQuantity: 7, SoldQuantity: 7, OpenQuantity: 3, Trades: 2,
		})
	})
}

func TestATraderMayTradeWithItself(t *testing.T) {
	inBubble(t, func(ctx context.Context, t *testing.T, client pb.OrderBookClient, _ *market) {
		ann := enter(ctx, t, client)
		ann.places(1, selling, 100, 5)
		ann.places(2, buying, 100, 5)
		same(t, ann.receive(), &pb.Event{Kind: &pb.Event_Fills{Fills: &pb.Fills{Fills: []*pb.Fill{
			{Id: 2, Trade: 1, Price: 100, Quantity: 5}, {Id: 1, Trade: 1, Price: 100, Quantity: 5},
		}}}})
	})
}

// An invalid request is rejected within the session, which continues.
func TestBadRequestsAreRejected(t *testing.T) {
	overAll(t, func(ctx context.Context, t *testing.T, m *market) {
		client, hangUp := m.dial(t)
		defer hangUp()
		ann, bob := enter(ctx, t, client), enter(ctx, t, client)
		ann.places(5, buying, 100, 1)
		ann.wantRejected(ordering(5, buying, 100, 1), 5, codes.AlreadyExists)
		ann.wantRejected(ordering(4, buying, 100, 1), 4, codes.AlreadyExists)
		for _, in := range []*pb.Request{
			ordering(6, buying, 0, 1), ordering(6, buying, -1, 1), ordering(6, buying, maxPrice+1, 1),
			ordering(6, buying, 100, 0), ordering(6, buying, 100, -1), ordering(6, buying, 100, maxQuantity+1),
			ordering(6, pb.Side_SIDE_UNSPECIFIED, 100, 1), ordering(6, 3, 100, 1),
		} {
			ann.wantRejected(in, 6, codes.InvalidArgument)
		}
		ann.wantRejected(ordering(0, buying, 100, 1), 0, codes.InvalidArgument)
		ann.wantRejected(&pb.Request{Kind: &pb.Request_Order{Order: &pb.Order{}}}, 0, codes.InvalidArgument)
		ann.wantRejected(cancelling(99), 99, codes.NotFound)
		bob.wantRejected(cancelling(5), 5, codes.NotFound) // Ann's order

		ann.send(cancelling(5))
		same(t, ann.receive(), &pb.Event{Kind: &pb.Event_Cancelled{Cancelled: &pb.Cancelled{Id: 5, Sequence: 2, Quantity: 1}}})
		ann.wantRejected(cancelling(5), 5, codes.NotFound)
		ann.wantRejected(ordering(5, buying, 100, 1), 5, codes.AlreadyExists)
		ann.places(6, buying, maxPrice, maxQuantity) // rejected orders have not used up their ids
		same(t, totals(ctx, t, client), &pb.BookTotals{
			Orders: 2, Cancelled: 1, Open: 1, OrderedQuantity: 1 + maxQuantity, CancelledQuantity: 1, OpenQuantity: maxQuantity,
		})
	})
}

func TestOpenOrdersAreLimited(t *testing.T) {
	inBubble(t, func(ctx context.Context, t *testing.T, client pb.OrderBookClient, _ *market) {
		ann, bob := enter(ctx, t, client), enter(ctx, t, client)
		for id := range uint64(openLimit) {
			ann.places(id+1, selling, 100, 1)
		}
		ann.wantRejected(ordering(openLimit+1, selling, 100, 1), openLimit+1, codes.ResourceExhausted)
		bob.places(1, buying, 100, 1)
		if n := len(ann.receive().GetFills().GetFills()); n != 1 {
			t.Errorf("there are %d fills, want 1", n)
		}
		ann.places(openLimit+1, selling, 100, 1)
	})
}

// A trader that sends many requests at once does not delay other traders until all are done.
func TestTradersTakeTurns(t *testing.T) {
	inBubble(t, func(ctx context.Context, t *testing.T, client pb.OrderBookClient, m *market) {
		const many = 200
		ann, bob := enter(ctx, t, client), enter(ctx, t, client)
		ann.places(1, buying, 100, 1)
		bob.places(1, buying, 100, 1)
		gate := make(chan struct{})
		if err := m.loop.Post(func() { <-gate }); err != nil { // holds the loop, so that all queue
			t.Fatal(err)
		}
		for id := range uint64(many) {
			ann.send(ordering(2+id, buying, 100, 1))
		}
		bob.send(ordering(2, buying, 100, 1))
		close(gate)
		if after := bob.receive().GetAccepted().GetSequence() - 3; after > many/10 {
			t.Errorf("%d orders of another came first", after)
		}
	})
}

// A request of an unknown kind ends the session, after the answers to earlier requests.
func TestARequestOfNoKindEndsTheSession(t *testing.T) {
	overAll(t, func(ctx context.Context, t *testing.T, m *market) {
		client, hangUp := m.dial(t)
		defer hangUp()
		ann := enter(ctx, t, client)
		unknown := new(pb.Request)
		unknown.ProtoReflect().SetUnknown([]byte{0x1a, 0x00}) // field 3, an empty message
		ann.send(ordering(1, buying, 100, 1))
		ann.send(unknown)
		if rest := ann.wantEnd(codes.InvalidArgument); len(rest) != 2 || rest[0].GetAccepted() == nil || rest[1].GetCancelled().GetId() != 1 {
			t.Errorf("the answers are %v, want accepted and cancelled", rest)
		}
		if open := totals(ctx, t, client).Open; open != 0 {
			t.Errorf("%d orders are open", open)
		}
	})
}

// When a trader closes its side, its orders are withdrawn and the session ends.
func TestATraderThatIsDoneGetsItsOrdersBack(t *testing.T) {
	overAll(t, func(ctx context.Context, t *testing.T, m *market) {
		client, hangUp := m.dial(t)
		defer hangUp()
		ann := enter(ctx, t, client)
		ann.places(1, buying, 100, 3)
		ann.places(2, buying, 90, 4)
		if err := ann.stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		rest := ann.wantEnd(codes.OK)
		if len(rest) != 2 || rest[0].GetCancelled().GetQuantity() != 3 || rest[1].GetCancelled().GetQuantity() != 4 {
			t.Errorf("what comes is %v, want both orders", rest)
		}
	})
}

// When a session ends for any reason, its trader's orders leave the book.
func TestATraderThatLeavesTakesItsOrders(t *testing.T) {
	overAll(t, func(ctx context.Context, t *testing.T, m *market) {
		client, hangUp := m.dial(t)
		defer hangUp()
		gone := func(how string) {
			t.Helper()
			for {
				b := totals(ctx, t, client)
				if b.Open == 0 && b.Cancelled == b.Orders {
					return
				}
				if ctx.Err() != nil {
					t.Fatalf("%s: %v", how, b)
				}
			}
		}
		leaving, leave := context.WithCancel(ctx)
		ann := enter(leaving, t, client)
		ann.places(1, buying, 100, 3)
		leave()
		gone("a trader that cancels its call")

		other, cut := m.dial(t)
		bob := enter(ctx, t, other)
		bob.places(1, buying, 100, 3)
		cut()
		gone("a trader that hangs up")

		carol := enter(ctx, t, client)
		carol.places(1, selling, 100, 3)
		if book, err := client.Snapshot(ctx, &pb.SnapshotRequest{}); err != nil || len(book.Bids) != 0 || len(book.Asks) != 1 {
			t.Errorf("the book is %v, %v", book, err)
		}
	})
}

// The exchange removes sessions and feeds as soon as their callers are gone.
func TestASessionLeavesNothing(t *testing.T) {
	inBubble(t, func(ctx context.Context, t *testing.T, client pb.OrderBookClient, m *market) {
		ctx, leave := context.WithCancel(ctx)
		ann := enter(ctx, t, client)
		ann.places(1, buying, 100, 3)
		feed := watch(ctx, t, client)
		leave()
		synctest.Wait()
		ann.wantEnd(codes.Canceled)
		if _, err := feed.Recv(); err == nil {
			t.Error("the feed goes on")
		}
		left := make(chan int, 2)
		if err := m.loop.Post(func() { left <- len(m.traders); left <- len(m.watchers) }); err != nil {
			t.Fatal(err)
		}
		if sessions, feeds := <-left, <-left; sessions+feeds > 0 {
			t.Errorf("%d sessions and %d feeds are left", sessions, feeds)
		}
	})
}

// A market that closes ends sessions and feeds, and refuses others.
func TestAMarketThatCloses(t *testing.T) {
	overAll(t, func(ctx context.Context, t *testing.T, m *market) {
		client, hangUp := m.dial(t)
		defer hangUp()
		feed := watch(ctx, t, client)
		ann := enter(ctx, t, client)
		ann.places(1, buying, 100, 3)
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		if rest := ann.wantEnd(codes.Unavailable); len(rest) != 1 || rest[0].GetCancelled().GetQuantity() != 3 {
			t.Errorf("what comes is %v, want the order", rest)
		}
		if _, err := feed.Recv(); err != io.EOF {
			t.Errorf("the feed ends with %v", err)
		}
		enter(ctx, t, client).wantEnd(codes.Unavailable)
		late, err := client.Watch(ctx, &pb.WatchRequest{})
		if err == nil {
			_, err = late.Recv()
		}
		wantCode(t, err, codes.Unavailable)
		m.srv.GracefulStop() // returns, as no call is left
	})
}
