package actor

import (
	"cmp"
	"context"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	pb "github.com/nearcall/nearcall/examples/actor/actorpb"
)

const (
	crowdSize   = 8
	crowdOrders = 300
)

// An account is what a trader has recorded at the end.
type account struct {
	deeds                            []deed
	fills                            []*pb.Fill
	ordered, bought, sold, cancelled int64
}

// trade places random orders and cancels some, and returns when the session has ended.
func (s *session) trade(seed uint64) account {
	placed := make([]*pb.Order, crowdOrders) // by id - 1
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range placed {
		placed[i] = &pb.Order{Id: uint64(i) + 1, Side: pb.Side(1 + r.IntN(2)), Price: 95 + r.Int64N(11), Quantity: 1 + r.Int64N(9)}
	}
	cancels := 0
	var sending sync.WaitGroup
	sending.Go(func() {
		for i, o := range placed {
			err := s.stream.Send(&pb.Request{Kind: &pb.Request_Order{Order: o}})
			if i%3 == 2 && err == nil {
				cancels++
				err = s.stream.Send(cancelling(1 + uint64(r.IntN(i+1))))
			}
			if err != nil {
				s.t.Error(err)
				return
			}
		}
		if err := s.stream.CloseSend(); err != nil {
			s.t.Error(err)
		}
	})
	var a account
	left, sequence := make(map[uint64]int64), make(map[uint64]uint64)
	accepted, rejected, asked := 0, 0, 0
	for {
		e, err := s.stream.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			s.t.Error(err)
			break
		}
		switch kind := e.GetKind().(type) {
		case *pb.Event_Accepted:
			id := kind.Accepted.GetId()
			o := placed[id-1]
			accepted++
			a.ordered += o.Quantity
			left[id], sequence[id] = o.Quantity, kind.Accepted.GetSequence()
			d := deed{sequence: sequence[id], side: buy, price: o.Price, quantity: o.Quantity}
			if o.Side == pb.Side_SIDE_SELL {
				d.side = sell
			}
			a.deeds = append(a.deeds, d)
		case *pb.Event_Rejected: // the cancel came too late
			rejected++
		case *pb.Event_Cancelled:
			c := kind.Cancelled
			asked++
			if left[c.Id] != c.Quantity || c.Quantity == 0 {
				s.t.Errorf("%d of an order are cancelled of which %d are left", c.Quantity, left[c.Id])
			}
			a.cancelled += c.Quantity
			delete(left, c.Id)
			a.deeds = append(a.deeds, deed{sequence: c.Sequence, cancels: sequence[c.Id]})
		case *pb.Event_Fills:
			for _, f := range kind.Fills.GetFills() {
				o := placed[f.Id-1]
				if left[f.Id] -= f.Quantity; left[f.Id] != f.Left || f.Left < 0 || f.Quantity <= 0 {
					s.t.Errorf("%v leaves %d", f, left[f.Id])
				}
				if o.Side == pb.Side_SIDE_BUY {
					a.bought += f.Quantity
				} else {
					a.sold += f.Quantity
				}
				if (o.Side == pb.Side_SIDE_BUY) != (f.Price <= o.Price) && f.Price != o.Price {
					s.t.Errorf("%v has traded at %d", o, f.Price)
				}
				if f.Left == 0 {
					delete(left, f.Id)
				}
				a.fills = append(a.fills, f)
			}
		}
	}
	sending.Wait()
	if len(left) > 0 {
		s.t.Errorf("the trader does not know what became of %d orders", len(left))
	}
	if accepted != crowdOrders || rejected > cancels || a.ordered != a.bought+a.sold+a.cancelled {
		s.t.Errorf("%d orders of %d in all are accepted and %d requests rejected; %d bought, %d sold, %d cancelled",
			accepted, a.ordered, rejected, a.bought, a.sold, a.cancelled)
	}
	return a
}

// Many traders change plain fields concurrently, which the race detector watches. Their
// orders, in the sequence that the market has assigned, must make the same trades in the
// reference book, and the feed and the traders' fills must agree with those.
func TestTheBookNeedsNoLock(t *testing.T) {
	overAll(t, func(ctx context.Context, t *testing.T, m *market) {
		client, hangUp := m.dial(t)
		defer hangUp()
		feed := watch(ctx, t, client)
		accounts := make([]account, crowdSize)
		var traders, others sync.WaitGroup
		done := make(chan struct{})
		for i := range accounts {
			own, hangUp := m.dial(t)
			defer hangUp()
			s := enter(ctx, t, own)
			traders.Go(func() { accounts[i] = s.trade(uint64(i)) })
		}
		others.Go(func() { // request snapshots while the traders trade
			for looks := 0; ; looks++ {
				select {
				case <-done:
					if looks == 0 {
						t.Error("nobody has looked at the book")
					}
					return
				default:
					look(ctx, t, client)
				}
			}
		})
		var tape []dealt
		others.Go(func() {
			for {
				trades, err := feed.Recv()
				if err != nil {
					if err != io.EOF {
						t.Error(err)
					}
					return
				}
				for _, d := range trades.GetTrades() {
					tape = append(tape, dealt{d.GetNumber(), d.GetPrice(), d.GetQuantity(), d.GetBuy(), d.GetSell()})
				}
			}
		})
		traders.Wait()
		close(done)
		sum := totals(ctx, t, client)
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		others.Wait()
		audit(t, accounts, tape, sum)
	})
}

// look checks that snapshots are consistent at any time.
func look(ctx context.Context, t *testing.T, client pb.OrderBookClient) {
	book, err := client.Snapshot(ctx, &pb.SnapshotRequest{Depth: 3})
	if err != nil {
		t.Error(err)
		return
	}
	if len(book.Bids) > 3 || len(book.Asks) > 3 {
		t.Errorf("three levels were asked for: %v", book)
	}
	if len(book.Bids) > 0 && len(book.Asks) > 0 && book.Bids[0].Price >= book.Asks[0].Price {
		t.Errorf("the book is crossed: %v", book)
	}
	for _, l := range slices.Concat(book.Bids, book.Asks) {
		if l.Orders <= 0 || l.Quantity < l.Orders {
			t.Errorf("a level is %v", l)
		}
	}
	b, err := client.Totals(ctx, &pb.TotalsRequest{})
	if err != nil {
		t.Error(err)
		return
	}
	if b.Orders != b.Filled+b.Cancelled+b.Open || b.BoughtQuantity != b.SoldQuantity ||
		b.OrderedQuantity != b.BoughtQuantity+b.SoldQuantity+b.CancelledQuantity+b.OpenQuantity {
		t.Errorf("the totals do not balance: %v", b)
	}
}

// audit compares the records of traders, watchers and the market.
func audit(t *testing.T, accounts []account, tape []dealt, sum *pb.BookTotals) {
	var deeds []deed
	type piece struct {
		trade           uint64
		price, quantity int64
	}
	var fills []piece
	var ordered, bought, sold, cancelled int64
	for _, a := range accounts {
		deeds = append(deeds, a.deeds...)
		for _, f := range a.fills {
			fills = append(fills, piece{f.Trade, f.Price, f.Quantity})
		}
		ordered, bought, sold, cancelled = ordered+a.ordered, bought+a.bought, sold+a.sold, cancelled+a.cancelled
	}
	slices.SortFunc(deeds, func(a, b deed) int { return cmp.Compare(a.sequence, b.sequence) })
	var want reference
	for i, d := range deeds {
		if d.sequence != uint64(i)+1 {
			t.Fatalf("the market has counted to %d at the %d. order or cancel", d.sequence, i+1)
		}
		want.do(d)
	}
	if len(want.resting) > 0 {
		t.Errorf("%d orders are left", len(want.resting))
	}
	if !slices.Equal(tape, want.trades) {
		t.Fatalf("the feed has %d trades that are not the %d that these orders make", len(tape), len(want.trades))
	}
	slices.SortFunc(fills, func(a, b piece) int { return cmp.Compare(a.trade, b.trade) })
	var twice []piece // each trade is a fill of two orders
	for _, d := range tape {
		p := piece{d.number, d.price, d.quantity}
		twice = append(twice, p, p)
	}
	if !slices.Equal(fills, twice) {
		t.Errorf("%d fills are not two of each of %d trades", len(fills), len(tape))
	}
	if len(tape) < crowdOrders {
		t.Errorf("there are %d trades alone", len(tape))
	}
	if bought != sold || bought != sum.BoughtQuantity || sold != sum.SoldQuantity || ordered != sum.OrderedQuantity ||
		cancelled != sum.CancelledQuantity || sum.OpenQuantity != 0 || uint64(len(tape)) != sum.Trades {
		t.Errorf("traders have ordered %d, bought %d, sold %d and cancelled %d, and the market says %v", ordered, bought, sold, cancelled, sum)
	}
}
