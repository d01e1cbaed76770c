package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/nearcall/nearcall/examples/orders/orderspb"
)

// shopping places orders of one tea each from several goroutines, waits until the last order of
// each goroutine is shipped, and returns the total quantity of the orders that List returns.
func shopping(ctx context.Context, client orderspb.OrdersClient, customer string, callers, each int) (int, error) {
	var all sync.WaitGroup
	failed := make([]error, callers)
	for i := range callers {
		all.Go(func() { failed[i] = place(ctx, client, customer, each) })
	}
	all.Wait()
	if err := errors.Join(failed...); err != nil {
		return 0, err
	}
	stream, err := client.List(ctx, &orderspb.ListRequest{Customer: customer})
	if err != nil {
		return 0, err
	}
	for sold := 0; ; {
		order, err := stream.Recv()
		if err == io.EOF {
			return sold, nil
		}
		if err != nil {
			return 0, err
		}
		sold += int(order.GetQuantity())
	}
}

func place(ctx context.Context, client orderspb.OrdersClient, customer string, n int) error {
	var last *orderspb.Order
	for range n {
		order, err := client.Place(ctx, &orderspb.PlaceRequest{Customer: customer, Item: "tea", Quantity: 1})
		if err != nil {
			return err
		}
		last = order
	}
	shipped, err := client.Await(ctx, &orderspb.AwaitRequest{Id: last.GetId()})
	if err == nil && !shipped.GetShipped() {
		err = fmt.Errorf("order %d was awaited, and is not shipped", last.GetId())
	}
	return err
}
