package actor

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// put places an order and returns it with its trades.
func put(b *book, s side, price, quantity int64) (*order, []trade) {
	o := &order{side: s, price: price, left: quantity}
	return o, b.place(o)
}

// wantTrades compares trades with pairs of the order that rested and the quantity.
func wantTrades(t *testing.T, got []trade, want ...any) {
	t.Helper()
	if len(got) != len(want)/2 {
		t.Fatalf("there are %d trades, want %d", len(got), len(want)/2)
	}
	for i, d := range got {
		o, quantity := want[2*i].(*order), want[2*i+1].(int)
		if d.rested != o || d.quantity != int64(quantity) || d.price != o.price {
			t.Errorf("trade %d is %d at %d with order %d, want %d at %d with order %d",
				i, d.quantity, d.price, d.rested.sequence, quantity, o.price, o.sequence)
		}
	}
}

func TestTheBestPriceTradesFirstAndAtThatPrice(t *testing.T) {
	var b book
	dear, _ := put(&b, sell, 105, 1)
	cheap, _ := put(&b, sell, 101, 1)
	middle, _ := put(&b, sell, 103, 1)
	_, trades := put(&b, buy, 110, 3)
	wantTrades(t, trades, cheap, 1, middle, 1, dear, 1)

	low, _ := put(&b, buy, 95, 1)
	high, _ := put(&b, buy, 99, 1)
	_, trades = put(&b, sell, 90, 2)
	wantTrades(t, trades, high, 1, low, 1)
	check(t, &b)
}

func TestTheEarlierOrderOfAPriceTradesFirst(t *testing.T) {
	var b book
	first, _ := put(&b, sell, 100, 2)
	second, _ := put(&b, sell, 100, 2)
	_, trades := put(&b, buy, 100, 1)
	wantTrades(t, trades, first, 1)
	third, _ := put(&b, sell, 100, 2)
	_, trades = put(&b, buy, 100, 5) // the rest of the first order keeps its priority
	wantTrades(t, trades, first, 1, second, 2, third, 2)
	check(t, &b)
}

func TestAnOrderRestsWithWhatIsLeft(t *testing.T) {
	var b book
	rested, _ := put(&b, sell, 100, 2)
	o, trades := put(&b, buy, 100, 5)
	wantTrades(t, trades, rested, 2)
	if o.left != 3 || o.level == nil {
		t.Errorf("%d are left of it, want 3 that rest", o.left)
	}
	if _, trades = put(&b, sell, 101, 1); len(trades) > 0 {
		t.Error("an ask above the bid has traded")
	}
	_, trades = put(&b, sell, 99, 1)
	wantTrades(t, trades, o, 1)
	check(t, &b)
}

func TestACancelledOrderDoesNotTrade(t *testing.T) {
	for which := range 3 { // the first at its price, one in the middle, and the last
		var b book
		var orders []*order
		for range 3 {
			o, _ := put(&b, buy, 100, 1)
			orders = append(orders, o)
		}
		b.cancel(orders[which])
		orders = slices.Delete(orders, which, which+1)
		_, trades := put(&b, sell, 100, 3)
		wantTrades(t, trades, orders[0], 1, orders[1], 1)
		check(t, &b)
	}
}

func TestALevelIsGoneWithItsLastOrder(t *testing.T) {
	var b book
	low, _ := put(&b, sell, 101, 1)
	mid, _ := put(&b, sell, 102, 1)
	high, _ := put(&b, sell, 103, 1)
	b.cancel(mid)
	_, trades := put(&b, buy, 200, 3)
	wantTrades(t, trades, low, 1, high, 1)
	check(t, &b)
}

// Random orders and cancels lead to the same trades as in the reference book.
func TestRandomOrdersTradeAsInTheSimplestBook(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 0))
		var b book
		var want reference
		var got []dealt
		var placed []*order
		for range 500 {
			if n := len(placed); n > 0 && r.IntN(4) == 0 {
				if o := placed[r.IntN(n)]; o.level != nil {
					b.cancel(o)
					want.do(deed{sequence: b.sequence, cancels: o.sequence})
				}
			} else {
				s := side(1 - 2*r.IntN(2))
				o, trades := put(&b, s, 95+r.Int64N(11), 1+r.Int64N(9))
				placed = append(placed, o)
				quantity := o.left
				for _, d := range trades {
					quantity += d.quantity
					f := dealt{number: d.number, price: d.price, quantity: d.quantity, buy: o.sequence, sell: d.rested.sequence}
					if s == sell {
						f.buy, f.sell = f.sell, f.buy
					}
					got = append(got, f)
				}
				want.do(deed{sequence: o.sequence, side: s, price: o.price, quantity: quantity})
			}
			check(t, &b)
		}
		if !slices.Equal(got, want.trades) {
			t.Fatalf("seed %d: the trades are\n%v, want\n%v", seed, got, want.trades)
		}
	}
}

// check checks b's invariants, and that its totals balance.
func check(t *testing.T, b *book) {
	t.Helper()
	bid, ask := b.bids.best(), b.asks.best()
	if bid != nil && ask != nil && bid.price >= ask.price {
		t.Fatalf("the book is crossed: %d is bid and %d asked", bid.price, ask.price)
	}
	var open, left int64
	for _, l := range []struct {
		*ladder
		side
	}{{&b.bids, buy}, {&b.asks, sell}} {
		for i, v := range l.levels {
			if i > 0 && (l.levels[i-1].price-v.price)*int64(l.side) >= 0 {
				t.Fatal("prices are not in order")
			}
			if v.first == nil {
				t.Fatal("a level has no orders")
			}
			var before *order
			for o := v.first; o != nil; before, o = o, o.next {
				if o.left <= 0 || o.level != v || o.before != before || o.price != v.price || o.side != l.side ||
					before != nil && before.sequence >= o.sequence {
					t.Fatalf("order %d of %d at %d does not belong where it is", o.sequence, o.left, o.price)
				}
				open++
				left += o.left
			}
			if v.last != before {
				t.Fatal("a level's last order is not its last")
			}
		}
	}
	if b.orders != b.filled+b.cancelled+open {
		t.Fatalf("of %d orders %d are filled, %d cancelled and %d open", b.orders, b.filled, b.cancelled, open)
	}
	if b.bought != b.sold || b.ordered != b.bought+b.sold+b.cancelledLeft+left {
		t.Fatalf("of %d ordered %d were bought, %d sold, %d cancelled and %d are open", b.ordered, b.bought, b.sold, b.cancelledLeft, left)
	}
}
