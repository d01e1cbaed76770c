package actor

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/nearcall/nearcall/examples/actor/actorpb"
	"github.com/nearcall/nearcall/loop"
)

// An Exchange implements the OrderBook service. Only tasks of one loop access it.
type Exchange struct {
	pb.UnimplementedOrderBookServer
	loop *loop.Loop

	book     book
	traders  map[*trader]bool
	watchers map[*line[*pb.Trades]]bool
	closed   bool

	lineLimit int // the limit of each client's line
}

// NewExchange returns an exchange whose service must be registered on l.
func NewExchange(l *loop.Loop) *Exchange {
	return &Exchange{
		loop:      l,
		traders:   make(map[*trader]bool),
		watchers:  make(map[*line[*pb.Trades]]bool),
		lineLimit: lineLimit,
	}
}

var errClosed = status.Error(codes.Unavailable, "the market is closed")

// Close closes the market: sessions end with Unavailable and watchers with OK, after the
// messages on their lines were sent. Close does not wait for that. Any goroutine may call
// it. It returns [loop.ErrClosed] if the loop is closed.
func (x *Exchange) Close() error {
	return x.loop.Post(func() {
		x.closed = true
		for t := range x.traders {
			x.withdraw(t)
			t.line.close(errClosed)
		}
		for w := range x.watchers {
			w.close(nil)
		}
	})
}

// start starts another task for a call.
func (x *Exchange) start(task func()) error {
	if x.loop.Go(func(context.Context) { task() }) != nil {
		return errClosed
	}
	return nil
}

// Trade implements the service. It is the session of one trader.
func (x *Exchange) Trade(stream grpc.BidiStreamingServer[pb.Request, pb.Event]) error {
	if x.closed {
		return errClosed
	}
	ctx, t := stream.Context(), &trader{open: make(map[uint64]*order)}
	t.line.limit = x.lineLimit
	if err := x.start(func() { t.line.deliver(ctx, stream.Send) }); err != nil {
		return err
	}
	if err := x.start(func() { x.receive(t, stream) }); err != nil {
		t.line.abort(err)
		return err
	}
	x.traders[t] = true
	err := t.line.wait(ctx)
	delete(x.traders, t)
	x.withdraw(t)
	return err
}

// Watch implements the service.
func (x *Exchange) Watch(_ *pb.WatchRequest, stream grpc.ServerStreamingServer[pb.Trades]) error {
	if x.closed {
		return errClosed
	}
	ctx, w := stream.Context(), &line[*pb.Trades]{limit: x.lineLimit}
	x.watchers[w] = true
	defer delete(x.watchers, w)
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	if err := x.start(func() { w.deliver(ctx, stream.Send) }); err != nil {
		return err
	}
	return w.wait(ctx)
}

// Snapshot implements the service.
func (x *Exchange) Snapshot(_ context.Context, in *pb.SnapshotRequest) (*pb.BookSnapshot, error) {
	return &pb.BookSnapshot{
		Sequence: x.book.sequence,
		Bids:     levels(&x.book.bids, in.GetDepth()),
		Asks:     levels(&x.book.asks, in.GetDepth()),
	}, nil
}

// Totals implements the service.
func (x *Exchange) Totals(context.Context, *pb.TotalsRequest) (*pb.BookTotals, error) {
	b := &x.book
	totals := &pb.BookTotals{
		Orders: b.orders, Filled: b.filled, Cancelled: b.cancelled,
		OrderedQuantity: b.ordered, BoughtQuantity: b.bought, SoldQuantity: b.sold, CancelledQuantity: b.cancelledLeft,
		Trades: b.trades,
	}
	// The open quantity is summed from the resting orders, independently of the book's
	// totals, so that their balance is a real check.
	for _, l := range append(levels(&b.bids, 0), levels(&b.asks, 0)...) {
		totals.Open += l.Orders
		totals.OpenQuantity += l.Quantity
	}
	return totals, nil
}

// levels returns the best levels of l: as many as depth says, or all if depth is 0.
func levels(l *ladder, depth uint32) []*pb.Level {
	n := len(l.levels)
	if depth > 0 && int64(depth) < int64(n) {
		n = int(depth)
	}
	found := make([]*pb.Level, 0, n)
	for i := range n {
		v := l.levels[len(l.levels)-1-i]
		sum := &pb.Level{Price: v.price}
		for o := v.first; o != nil; o = o.next {
			sum.Orders++
			sum.Quantity += o.left
		}
		found = append(found, sum)
	}
	return found
}
