package actor

import "slices"

// A side says whether an order buys or sells.
type side int8

const (
	buy  side = 1
	sell side = -1
)

// An order is a limit order. The book owns it once it is placed; its trader may read it.
type order struct {
	trader   *trader // its owner, which the book does not use
	id       uint64  // assigned by the trader
	sequence uint64  // assigned by the book, in the order of placing
	side     side
	price    int64
	left     int64 // the quantity that has neither traded nor been cancelled

	// Set while the order rests in the book.
	level        *level
	before, next *order
}

// crosses reports whether o may trade at price.
func (o *order) crosses(price int64) bool {
	return (o.price-price)*int64(o.side) >= 0
}

// A trade is between the taker, which is an order that was just placed, and an order that rested
// in the book. Its price is that of the order that rested.
type trade struct {
	number                uint64
	price, quantity       int64
	taker, rested         *order
	takerLeft, restedLeft int64 // what is left of either order after the trade
}

// A book matches orders by price, and by time where prices are equal.
//
// Invariants, outside of its methods:
//   - The best bid is below the best ask.
//   - Resting orders have something left, and no level is empty.
//   - The orders of a level are sorted by sequence.
type book struct {
	bids, asks ladder
	sequence   uint64 // of the latest order or cancel
	trades     uint64 // the number of trades, and of the latest trade

	orders, filled, cancelled            int64
	ordered, bought, sold, cancelledLeft int64 // quantities
}

// place matches o with resting orders. What is left of o then rests in the book.
func (b *book) place(o *order) []trade {
	b.sequence++
	o.sequence = b.sequence
	b.orders++
	b.ordered += o.left
	own, others := &b.bids, &b.asks
	if o.side == sell {
		own, others = others, own
	}
	var trades []trade
	for o.left > 0 {
		r := others.best()
		if r == nil || !o.crosses(r.price) {
			break
		}
		trades = append(trades, b.trade(o, r))
		if r.left == 0 {
			others.remove(r)
			b.filled++
		}
	}
	if o.left == 0 {
		b.filled++
	} else {
		own.add(o)
	}
	return trades
}

func (b *book) trade(taker, rested *order) trade {
	quantity := min(taker.left, rested.left)
	taker.left -= quantity
	rested.left -= quantity
	b.trades++
	b.bought += quantity
	b.sold += quantity
	return trade{
		number: b.trades, price: rested.price, quantity: quantity,
		taker: taker, rested: rested, takerLeft: taker.left, restedLeft: rested.left,
	}
}

// cancel removes the resting order o from the book. It does not change o.left.
func (b *book) cancel(o *order) {
	b.sequence++
	b.cancelled++
	b.cancelledLeft += o.left
	if o.side == buy {
		b.bids.remove(o)
	} else {
		b.asks.remove(o)
	}
}

// A ladder is the resting orders of one side, by price. The best price is last, where adding
// and removing cost least.
type ladder struct{ levels []*level }

// A level is the orders at one price, the oldest first.
type level struct {
	price       int64
	first, last *order
}

// best returns the order that trades first, or nil if none rests.
func (l *ladder) best() *order {
	if n := len(l.levels); n > 0 {
		return l.levels[n-1].first
	}
	return nil
}

// find returns the index at which the level of price is or belongs. Bids ascend to the best
// price, and asks descend to it.
func (l *ladder) find(price int64, s side) (int, bool) {
	return slices.BinarySearchFunc(l.levels, price, func(v *level, price int64) int {
		switch {
		case v.price == price:
			return 0
		case (v.price < price) == (s == buy):
			return -1
		}
		return 1
	})
}

// add puts o behind the other orders at its price.
func (l *ladder) add(o *order) {
	i, found := l.find(o.price, o.side)
	if !found {
		l.levels = slices.Insert(l.levels, i, &level{price: o.price})
	}
	v := l.levels[i]
	o.level, o.before = v, v.last
	if v.last == nil {
		v.first = o
	} else {
		v.last.next = o
	}
	v.last = o
}

// remove removes the resting order o from the ladder.
func (l *ladder) remove(o *order) {
	v := o.level
	if o.before == nil {
		v.first = o.next
	} else {
		o.before.next = o.next
	}
	if o.next == nil {
		v.last = o.before
	} else {
		o.next.before = o.before
	}
	o.level, o.before, o.next = nil, nil, nil
	if v.first == nil {
		i, _ := l.find(v.price, o.side)
		l.levels = slices.Delete(l.levels, i, i+1)
	}
}
