package actor

import (
	"io"
	"maps"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/nearcall/nearcall/examples/actor/actorpb"
	"github.com/nearcall/nearcall/loop"
)

// Limits of a session, besides that of its line. One order of another trader can fill all
// open orders, which is reported in one message with that many fills.
const (
	openLimit   = 256
	maxPrice    = 1_000_000_000
	maxQuantity = 1_000_000
)

// A trader is one session.
//
// Invariants, whenever another task can run:
//   - open is the trader's orders in the book, by the trader's ids.
//   - If the line is closed, open is empty, unless the line ended with the call or in Send
//     and the handler has not had its turn since.
type trader struct {
	line line[*pb.Event]
	open map[uint64]*order
	last uint64 // the id of the latest order that was accepted
}

// receive executes the trader's requests until the session ends.
//
// Recv lets other tasks run only if it has to wait, but a trader may have sent many requests
// at once. So receive yields before each request: other traders' requests get their turns,
// and messages are sent.
func (x *Exchange) receive(t *trader, stream grpc.BidiStreamingServer[pb.Request, pb.Event]) {
	ctx := stream.Context()
	for t.line.room(ctx) == nil && loop.Sleep(ctx, 0) == nil && !t.line.closed {
		in, err := stream.Recv()
		switch {
		case t.line.closed: // while Recv waited: the request is too late
			return
		case err == io.EOF:
			x.withdraw(t)
			t.line.close(nil)
			return
		case err != nil:
			t.line.abort(err)
			return
		}
		switch kind := in.GetKind().(type) {
		case *pb.Request_Order:
			x.place(t, kind.Order)
		case *pb.Request_Cancel:
			x.cancel(t, kind.Cancel)
		default:
			x.withdraw(t)
			t.line.close(status.Error(codes.InvalidArgument, "a request is an order or a cancel, and this is neither"))
		}
	}
}

func (x *Exchange) place(t *trader, in *pb.Order) {
	if code, reason := t.check(in); code != codes.OK {
		x.reject(t, in.GetId(), code, reason)
		return
	}
	o := &order{trader: t, id: in.GetId(), side: buy, price: in.GetPrice(), left: in.GetQuantity()}
	if in.GetSide() == pb.Side_SIDE_SELL {
		o.side = sell
	}
	t.last = o.id
	trades := x.book.place(o)
	if o.left > 0 {
		t.open[o.id] = o
	}
	for _, d := range trades { // before any event is sent, as that can withdraw open orders
		if d.restedLeft == 0 {
			delete(d.rested.trader.open, d.rested.id)
		}
	}
	x.tell(t, &pb.Event{Kind: &pb.Event_Accepted{Accepted: &pb.Accepted{Id: o.id, Sequence: o.sequence}}})
	if len(trades) > 0 {
		x.applyTrades(trades)
	}
}

// check returns what is wrong with an order, or codes.OK.
func (t *trader) check(in *pb.Order) (codes.Code, string) {
	switch {
	case in.GetId() == 0:
		return codes.InvalidArgument, "an order's id is 1 or more"
	case in.GetId() <= t.last:
		return codes.AlreadyExists, "an order's id is greater than that of the one before"
	case in.GetSide() != pb.Side_SIDE_BUY && in.GetSide() != pb.Side_SIDE_SELL:
		return codes.InvalidArgument, "an order buys or sells"
	case in.GetPrice() < 1 || in.GetPrice() > maxPrice:
		return codes.InvalidArgument, "the price is not from 1 to 1 000 000 000"
	case in.GetQuantity() < 1 || in.GetQuantity() > maxQuantity:
		return codes.InvalidArgument, "the quantity is not from 1 to 1 000 000"
	case len(t.open) == openLimit:
		return codes.ResourceExhausted, "too many orders are open: cancel some"
	}
	return codes.OK, ""
}

func (x *Exchange) cancel(t *trader, in *pb.Cancel) {
	o := t.open[in.GetId()]
	if o == nil {
		x.reject(t, in.GetId(), codes.NotFound, "no order of this id is open")
		return
	}
	x.takeBack(o)
}

// takeBack cancels an order that rests.
func (x *Exchange) takeBack(o *order) {
	x.book.cancel(o)
	delete(o.trader.open, o.id)
	x.tell(o.trader, &pb.Event{Kind: &pb.Event_Cancelled{Cancelled: &pb.Cancelled{Id: o.id, Sequence: x.book.sequence, Quantity: o.left}}})
}

// withdraw cancels all of t's orders.
func (x *Exchange) withdraw(t *trader) {
	for _, id := range slices.Sorted(maps.Keys(t.open)) {
		if o := t.open[id]; o != nil { // nil if takeBack found the line full, and so withdrew all
			x.takeBack(o)
		}
	}
}

func (x *Exchange) reject(t *trader, id uint64, code codes.Code, reason string) {
	x.tell(t, &pb.Event{Kind: &pb.Event_Rejected{Rejected: &pb.Rejected{Id: id, Code: int32(code), Reason: reason}}})
}

// tell puts e on t's line, which ends if it is full.
func (x *Exchange) tell(t *trader, e *pb.Event) {
	if !t.line.put(e) {
		x.withdraw(t)
	}
}

// applyTrades reports the trades of one order, which was just placed: once to each trader
// concerned, and to the watchers.
func (x *Exchange) applyTrades(trades []trade) {
	fills := make(map[*trader]*pb.Fills)
	var concerned []*trader // in the order of their first fills
	fill := func(o *order, left int64, of trade) {
		t := o.trader
		if fills[t] == nil {
			fills[t] = new(pb.Fills)
			concerned = append(concerned, t)
		}
		fills[t].Fills = append(fills[t].Fills, &pb.Fill{Id: o.id, Trade: of.number, Price: of.price, Quantity: of.quantity, Left: left})
	}
	feed := new(pb.Trades)
	for _, d := range trades {
		fill(d.taker, d.takerLeft, d)
		fill(d.rested, d.restedLeft, d)
		bought, sold := d.taker, d.rested
		if d.taker.side == sell {
			bought, sold = sold, bought
		}
		feed.Trades = append(feed.Trades, &pb.Trade{Number: d.number, Price: d.price, Quantity: d.quantity, Buy: bought.sequence, Sell: sold.sequence})
	}
	for _, t := range concerned {
		x.tell(t, &pb.Event{Kind: &pb.Event_Fills{Fills: fills[t]}})
	}
	for w := range x.watchers {
		w.put(feed)
	}
}
