package actor

import "slices"

// A deed is an input of the reference book: an order, or the cancel of one.
type deed struct {
	sequence        uint64
	side            side // 0 for a cancel
	price, quantity int64
	cancels         uint64 // the sequence of the order to cancel
}

// A dealt is a trade as the feed reports it.
type dealt struct {
	number          uint64
	price, quantity int64
	buy, sell       uint64
}

// A reference is a simple book that searches all resting orders for each trade.
type reference struct {
	resting []deed // the oldest first
	trades  []dealt
}

func (r *reference) do(d deed) {
	if d.side == 0 {
		r.resting = slices.DeleteFunc(r.resting, func(o deed) bool { return o.sequence == d.cancels })
		return
	}
	for d.quantity > 0 {
		best := -1
		for i, o := range r.resting {
			if o.side != d.side && (d.price-o.price)*int64(d.side) >= 0 &&
				(best < 0 || (r.resting[best].price-o.price)*int64(d.side) > 0) {
				best = i
			}
		}
		if best < 0 {
			r.resting = append(r.resting, d)
			return
		}
		o := &r.resting[best]
		t := dealt{number: uint64(len(r.trades)) + 1, price: o.price, quantity: min(d.quantity, o.quantity), buy: d.sequence, sell: o.sequence}
		if d.side == sell {
			t.buy, t.sell = t.sell, t.buy
		}
		r.trades = append(r.trades, t)
		d.quantity -= t.quantity
		if o.quantity -= t.quantity; o.quantity == 0 {
			r.resting = slices.Delete(r.resting, best, best+1)
		}
	}
}
