package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	pb "github.com/nearcall/nearcall/examples/board/boardpb"
)

// flowerPoints is the number of points of the flower, and pace the time between two of them.
const (
	flowerPoints = 360
	pace         = 10 * time.Millisecond
)

// drawFlower joins the board at target and draws. It reports to out what others draw, until ctx
// ends.
func drawFlower(ctx context.Context, target string, out io.Writer) error {
	conn, err := nearcall.NewClient(target)
	if err != nil {
		return err
	}
	defer conn.Close()
	stream, err := pb.NewBoardClient(conn).Join(ctx)
	if err != nil {
		return err
	}
	go func() { _ = sendFlower(ctx, stream) }() // Recv returns why it fails
	for points := 0; ; {
		e, err := stream.Recv()
		switch {
		case status.Code(err) == codes.Canceled && ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case e.GetPeople() != nil:
			_, err = fmt.Fprintf(out, "people on the board: %d\n", e.GetPeople().GetCount())
		case e.GetPart() != nil:
			points += len(e.GetPart().GetXy()) / 2
			_, err = fmt.Fprintf(out, "points of others: %d\n", points)
		}
		if err != nil {
			return err
		}
	}
}

func sendFlower(ctx context.Context, stream grpc.BidiStreamingClient[pb.Draw, pb.Event]) error {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	author := rand.Uint32()
	for i := range flowerPoints {
		at := 2 * math.Pi * float64(i) / (flowerPoints - 1)
		r := 300 * math.Cos(3*at) // three petals
		x, y := width/2+r*math.Cos(at), height/2+r*math.Sin(at)
		part := &pb.Part{Author: author, Start: uint32(i), Color: 1, Xy: []uint32{uint32(x), uint32(y)}}
		if err := stream.Send(&pb.Draw{What: &pb.Draw_Part{Part: part}}); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
