package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"github.com/nearcall/nearcall"
	pb "github.com/nearcall/nearcall/examples/actor/actorpb"
)

// An account is a trader's record of its session. Quantities are sums.
type account struct {
	Over string // the network

	Orders, Fills, Rejected          int
	Ordered, Bought, Sold, Cancelled int64
}

// trade is the main function of a trader's process: it places orders when it reads a line, and
// prints its account.
func trade(ctx context.Context, target string, orders int, seed uint64) error {
	conn, err := nearcall.NewClient(target)
	if err != nil {
		return err
	}
	defer conn.Close()
	client := pb.NewOrderBookClient(conn)
	var market peer.Peer
	if _, err := client.Snapshot(ctx, &pb.SnapshotRequest{Depth: 1}, grpc.Peer(&market)); err != nil {
		return err
	}
	stream, err := client.Trade(ctx)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return fmt.Errorf("nobody says when to begin: %w", err)
	}
	placed := draw(orders, seed)
	sent := make(chan error, 1)
	go func() { sent <- send(stream, placed) }()
	a := account{Over: market.Addr.Network()}
	if err := a.receive(stream, placed); err != nil {
		return err
	}
	if err := <-sent; err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(a)
}

// draw returns random orders around one price. Their ids count from 1.
func draw(n int, seed uint64) []*pb.Order {
	r := rand.New(rand.NewPCG(seed, 1))
	drawn := make([]*pb.Order, n)
	for i := range drawn {
		o := &pb.Order{Id: uint64(i) + 1, Side: pb.Side_SIDE_BUY, Price: 990 + r.Int64N(20), Quantity: 1 + r.Int64N(100)}
		if r.IntN(2) == 0 {
			o.Side, o.Price = pb.Side_SIDE_SELL, o.Price+1
		}
		drawn[i] = o
	}
	return drawn
}

// send places the orders, and cancels each order after it has placed some more. Most orders have
// been filled by then, so the market rejects their cancels.
func send(stream grpc.BidiStreamingClient[pb.Request, pb.Event], orders []*pb.Order) error {
	const later = 100 // less than the limit of open orders
	for i, o := range orders {
		if err := stream.Send(&pb.Request{Kind: &pb.Request_Order{Order: o}}); err != nil {
			return err
		}
		if i >= later {
			old := &pb.Cancel{Id: orders[i-later].Id}
			if err := stream.Send(&pb.Request{Kind: &pb.Request_Cancel{Cancel: old}}); err != nil {
				return err
			}
		}
	}
	return stream.CloseSend()
}

// receive records all events in the account until the session ends.
func (a *account) receive(stream grpc.BidiStreamingClient[pb.Request, pb.Event], orders []*pb.Order) error {
	for {
		e, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		switch kind := e.GetKind().(type) {
		case *pb.Event_Accepted:
			a.Orders++
			a.Ordered += orders[kind.Accepted.GetId()-1].GetQuantity()
		case *pb.Event_Rejected:
			a.Rejected++
		case *pb.Event_Cancelled:
			a.Cancelled += kind.Cancelled.GetQuantity()
		case *pb.Event_Fills:
			for _, f := range kind.Fills.GetFills() {
				a.Fills++
				if orders[f.GetId()-1].GetSide() == pb.Side_SIDE_BUY {
					a.Bought += f.GetQuantity()
				} else {
					a.Sold += f.GetQuantity()
				}
			}
		}
	}
}
