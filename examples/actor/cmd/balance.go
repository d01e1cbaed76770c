package main

import (
	"errors"
	"fmt"
	"io"

	pb "github.com/nearcall/nearcall/examples/actor/actorpb"
)

// report prints the accounts of the traders, the feed and the book.
func report(w io.Writer, accounts []account, seen tape, totals *pb.BookTotals) {
	for i, a := range accounts {
		fmt.Fprintf(w, "trader %d, over %s: %d orders of %d in all: %d bought and %d sold in %d fills, %d cancelled\n",
			i+1, a.Over, a.Orders, a.Ordered, a.Bought, a.Sold, a.Fills, a.Cancelled)
	}
	fmt.Fprintf(w, "the feed: %d trades of %d in all\n", seen.trades, seen.quantity)
	fmt.Fprintf(w, "the book: %d orders of %d in all: %d bought and %d sold in %d trades, %d cancelled, %d open\n",
		totals.GetOrders(), totals.GetOrderedQuantity(), totals.GetBoughtQuantity(), totals.GetSoldQuantity(),
		totals.GetTrades(), totals.GetCancelledQuantity(), totals.GetOpenQuantity())
	if all := sum(accounts); all.Bought == all.Sold {
		fmt.Fprintf(w, "the traders have bought %d and sold as much\n", all.Bought)
	} else {
		fmt.Fprintf(w, "the traders have bought %d and sold %d\n", all.Bought, all.Sold)
	}
}

func sum(accounts []account) account {
	var all account
	for _, a := range accounts {
		all.Orders += a.Orders
		all.Fills += a.Fills
		all.Ordered += a.Ordered
		all.Bought += a.Bought
		all.Sold += a.Sold
		all.Cancelled += a.Cancelled
	}
	return all
}

// balance compares the accounts of traders that placed the given number of orders each, the
// feed and the book, and returns an error with all differences.
func balance(accounts []account, seen tape, totals *pb.BookTotals, orders int) error {
	var wrong []error
	equal := func(what string, a, b int64) {
		if a != b {
			wrong = append(wrong, fmt.Errorf("%s: %d and %d, which are not equal", what, a, b))
		}
	}
	for i, a := range accounts {
		equal(fmt.Sprintf("orders of trader %d, placed and accepted", i+1), int64(orders), int64(a.Orders))
		equal(fmt.Sprintf("quantity of trader %d, ordered and accounted for", i+1), a.Ordered, a.Bought+a.Sold+a.Cancelled)
	}
	all := sum(accounts)
	equal("quantity that traders have bought and sold", all.Bought, all.Sold)
	equal("fills of traders, and two for each trade", int64(all.Fills), 2*int64(totals.GetTrades()))

	equal("orders, as traders and the book say", int64(all.Orders), totals.GetOrders())
	equal("quantity ordered, as traders and the book say", all.Ordered, totals.GetOrderedQuantity())
	equal("quantity bought, as traders and the book say", all.Bought, totals.GetBoughtQuantity())
	equal("quantity sold, as traders and the book say", all.Sold, totals.GetSoldQuantity())
	equal("quantity cancelled, as traders and the book say", all.Cancelled, totals.GetCancelledQuantity())

	equal("orders of the book, and those filled or cancelled", totals.GetOrders(), totals.GetFilled()+totals.GetCancelled())
	equal("orders that are open, and none", totals.GetOpen(), 0)
	equal("quantity that is open, and none", totals.GetOpenQuantity(), 0)
	equal("trades, as the feed and the book say", int64(seen.trades), int64(totals.GetTrades()))
	equal("quantity traded, as the feed and the book say", seen.quantity, totals.GetBoughtQuantity())
	if !seen.inOrder {
		wrong = append(wrong, errors.New("the feed has trades missing or out of order"))
	}
	if len(wrong) > 0 {
		return fmt.Errorf("the books do not balance:\n%w", errors.Join(wrong...))
	}
	return nil
}
