package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/examples/actor"
	pb "github.com/nearcall/nearcall/examples/actor/actorpb"
	"github.com/nearcall/nearcall/loop"
)

// run opens the market, lets traders trade, closes it, and prints the results. If the results do
// not balance, its error says what differs.
func run(ctx context.Context, network string, traders, orders int) error {
	dir, err := os.MkdirTemp("", "actor")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	lis, err := listen(network, dir)
	if err != nil {
		return err
	}
	l, srv := loop.New(), nearcall.NewServer()
	x := actor.NewExchange(l)
	pb.RegisterOrderBookServer(srv.OnLoop(l), x)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	defer srv.Stop()

	conn := srv.Client() // in process
	defer conn.Close()
	client := pb.NewOrderBookClient(conn)
	tape, err := record(ctx, client)
	if err != nil {
		return err
	}
	accounts, err := hire(ctx, lis.Target(), traders, orders)
	if err != nil {
		return err
	}
	totals, err := client.Totals(ctx, &pb.TotalsRequest{})
	if err != nil {
		return err
	}

	// Closing the market ends the feed, so that the server need not abort it. The loop is
	// closed after the server.
	if err := x.Close(); err != nil {
		return err
	}
	seen := <-tape
	if seen.err != nil {
		return fmt.Errorf("the feed: %w", seen.err)
	}
	srv.GracefulStop()
	if err := <-served; err != nil {
		return err
	}
	if err := l.Close(ctx); err != nil {
		return err
	}
	report(os.Stdout, accounts, seen.tape, totals)
	return balance(accounts, seen.tape, totals, orders)
}

// listen listens on network, or if that is "" on the nearest one that the system supports.
func listen(network, dir string) (nearcall.Listener, error) {
	targets := map[string]string{
		"shm":  "shm:" + filepath.Join(dir, "market"),
		"unix": "unix:" + filepath.Join(dir, "market"),
		"tcp":  "tcp:127.0.0.1:0",
	}
	if network != "" {
		if targets[network] == "" {
			return nil, fmt.Errorf("the network is shm, unix or tcp, and not %q", network)
		}
		return nearcall.Listen(targets[network])
	}
	var err error
	for _, network := range []string{"shm", "unix", "tcp"} {
		var lis nearcall.Listener
		if lis, err = nearcall.Listen(targets[network]); err == nil {
			return lis, nil
		}
	}
	return nil, err
}

// A tape has the sums over the feed of trades.
type tape struct {
	trades   uint64
	quantity int64
	inOrder  bool // no trade was missing or repeated
}

type recorded struct {
	tape
	err error
}

// record sums all trades from now on, until the market closes.
func record(ctx context.Context, client pb.OrderBookClient) (<-chan recorded, error) {
	feed, err := client.Watch(ctx, &pb.WatchRequest{})
	if err != nil {
		return nil, err
	}
	if _, err := feed.Header(); err != nil {
		return nil, err
	}
	done := make(chan recorded, 1)
	go func() {
		r := recorded{tape: tape{inOrder: true}}
		for {
			in, err := feed.Recv()
			if err != nil {
				if err != io.EOF {
					r.err = err
				}
				done <- r
				return
			}
			for _, d := range in.GetTrades() {
				r.trades++
				r.quantity += d.GetQuantity()
				r.inOrder = r.inOrder && d.GetNumber() == r.trades
			}
		}
	}()
	return done, nil
}
