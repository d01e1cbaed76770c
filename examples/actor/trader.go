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

// Limits of a session, besides that of its line. One order of another may fill all
// that is open: that is one message, of so many fills.
const (
	openLimit   = 256
	maxPrice    = 1_000_000_000
	maxQuantity = 1_000_000
)

// A trader is one session.
//
// Invariants, whenever another task runs:
//   - open is what the trader has in the book, by its ids.
//   - Where the line is closed there is none, unless it ended with the call or
//     in Send, and the handler has not had its turn since.
type trader struct {
	line line[*pb.Event]
	open map[uint64]*order
	last uint64 // the id of the latest order that was accepted
}

// receive does what the trader asks for, until the session ends.
//
// Recv gives the loop away where it has to wait, and a trader may have sent many
// requests at once. So that these do not all come before anybody else's, and others
// are sent what they come to, each request is a turn of its own.
func (x *Exchange) receive(t *trader, stream grpc.BidiStreamingServer[pb.Request, pb.Event]) {
	ctx := stream.Context()
	for t.line.room(ctx) == nil && loop.Sleep(ctx, 0) == nil && !t.line.closed {
		in, err := stream.Recv()
		switch {
		case t.line.closed: // meanwhile: what comes is too late
			return
		case err == io.EOF:
			x.withdraw(t)
			t.line.close(nil)
			return
		case err != nil:
			t.line.end(err)
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
	for _, d := range trades { // before anybody is told: that may withdraw what is open
		if d.restedLeft == 0 {
			delete(d.rested.trader.open, d.rested.id)
		}
	}
	x.tell(t, &pb.Event{Kind: &pb.Event_Accepted{Accepted: &pb.Accepted{Id: o.id, Sequence: o.sequence}}})
	if len(trades) > 0 {
		x.settle(trades)
	}
}

// check says what is wrong with an order.
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

// withdraw cancels what t has in the book.
func (x *Exchange) withdraw(t *trader) {
	for _, id := range slices.Sorted(maps.Keys(t.open)) {
		if o := t.open[id]; o != nil { // it may be gone: takeBack withdraws all where the line is full
			x.takeBack(o)
		}
	}
}

func (x *Exchange) reject(t *trader, id uint64, code codes.Code, reason string) {
	x.tell(t, &pb.Event{Kind: &pb.Event_Rejected{Rejected: &pb.Rejected{Id: id, Code: int32(code), Reason: reason}}})
}

// tell puts e on t's line, which it may end.
func (x *Exchange) tell(t *trader, e *pb.Event) {
	if !t.line.put(e) {
		x.withdraw(t)
	}
}

// settle tells those concerned of the trades of one order, which has just been
// placed: each trader once, and the watchers.
func (x *Exchange) settle(trades []trade) {
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
