package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nearcall/nearcall"
	orders "github.com/nearcall/nearcall/examples/orders/after"
	"github.com/nearcall/nearcall/examples/orders/orderspb"

	"github.com/nearcall/nearcall/examples/javascript/engine"
)

var (
	//go:embed shop.js
	shopScript string

	//go:embed customer.js
	customerScript string
)

// ordersService is the descriptor of the service that is served and called here.
var ordersService protoreflect.ServiceDescriptor = orderspb.File_examples_orders_orderspb_orders_proto.Services().ByName("Orders")

// A warehouse is a shop that ships an order some time after a caller begins to await it.
// Callers must only await orders that exist.
type warehouse struct{ *orders.Shop }

// Await implements the Orders service.
func (w warehouse) Await(ctx context.Context, req *orderspb.AwaitRequest) (*orderspb.Order, error) {
	defer time.AfterFunc(20*time.Millisecond, func() { w.Ship(req.GetId()) }).Stop()
	return w.Shop.Await(ctx, req)
}

// stocked is the wholesaler's stock of tea. There is no caviar.
const stocked = 10_000

// run executes the program and prints its results to w.
func run(ctx context.Context, w io.Writer) (err error) {
	wholesaler := warehouse{orders.NewShop(map[string]int32{"tea": stocked})}
	market := nearcall.NewServer()
	orderspb.RegisterOrdersServer(market, wholesaler)
	defer market.Stop()
	conn := market.Client()
	defer conn.Close()

	e := engine.New(nil)
	defer func() {
		if closed := e.Close(ctx); err == nil {
			err = closed
		}
	}()
	if err := e.Bind("wholesaler", conn, ordersService); err != nil {
		return err
	}
	if err := buy(ctx, w, e); err != nil {
		return fmt.Errorf("the customer: %w", err)
	}
	if err := sell(ctx, w, e); err != nil {
		return fmt.Errorf("the shop: %w", err)
	}
	return nil
}

// buy runs a script that calls a service written in Go.
func buy(ctx context.Context, w io.Writer, e *engine.Engine) error {
	text, err := e.Run(ctx, "customer.js", customerScript)
	if err != nil {
		return err
	}
	var seen struct {
		Placed, Listed, Price, TicksMeanwhile int
		Refused                               string
	}
	if err := json.Unmarshal([]byte(text), &seen); err != nil {
		return err
	}
	fmt.Fprintf(w, "customer.js placed %d orders of %d in all with a service in Go, and haggled it down to %d\n", seen.Placed, seen.Listed, seen.Price)
	fmt.Fprintf(w, "customer.js was refused: %s\n", seen.Refused)
	fmt.Fprintf(w, "customer.js has awaited a call, and its timer ticked %d times meanwhile\n", seen.TicksMeanwhile)
	if seen.Placed != 3 || seen.Listed != 1+2+3 || seen.TicksMeanwhile == 0 {
		return errors.New("the result is not the expected one")
	}
	return nil
}

// sell serves Orders by a script, and calls it in process and over TCP.
func sell(ctx context.Context, w io.Writer, e *engine.Engine) error {
	if _, err := e.Run(ctx, "shop.js", shopScript); err != nil {
		return err
	}
	srv := nearcall.NewServer()
	if err := e.Register(srv, ordersService, "shop"); err != nil {
		return err
	}
	lis, err := nearcall.Listen("tcp:127.0.0.1:0")
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	defer func() {
		srv.GracefulStop()
		<-served
	}()
	far, err := nearcall.NewClient(lis.Target(), nearcall.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer far.Close()
	near := srv.Client()
	defer near.Close()

	const callers, each = 20, 50
	for _, path := range []struct {
		name   string
		client orderspb.OrdersClient
	}{{"in process", orderspb.NewOrdersClient(near)}, {"over TCP", orderspb.NewOrdersClient(far)}} {
		sold, err := shopping(ctx, path.client, path.name, callers, each)
		if err != nil {
			return fmt.Errorf("%s: %w", path.name, err)
		}
		fmt.Fprintf(w, "shop.js sold %d to %d callers at a time, %s\n", sold, callers, path.name)
	}
	_, refusal := orderspb.NewOrdersClient(far).Place(ctx, &orderspb.PlaceRequest{Item: "caviar", Quantity: 1})
	fmt.Fprintf(w, "shop.js passes on what its wholesaler says: %v, details %v\n", status.Code(refusal), status.Convert(refusal).Details())
	return balance(ctx, w, e, 2*callers*each)
}

// balance checks what the shop has bought against what it has sold and kept.
func balance(ctx context.Context, w io.Writer, e *engine.Engine, sold int) error {
	text, err := e.Run(ctx, "balance", `({ bought, sold: orders.reduce((sum, { order }) => sum + order.quantity, 0), left: left('tea') })`)
	if err != nil {
		return err
	}
	var books struct{ Bought, Sold, Left int }
	if err := json.Unmarshal([]byte(text), &books); err != nil {
		return err
	}
	fmt.Fprintf(w, "shop.js has bought %d, sold %d, and has %d left\n", books.Bought, books.Sold, books.Left)
	if books.Sold != sold || books.Bought != books.Sold+books.Left {
		return fmt.Errorf("the books do not balance: %d were sold", sold)
	}
	return nil
}
