package main

import (
	"context"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/nearcall/nearcall/examples/board/boardpb"
)

// Limits of the board.
const (
	width, height = 1600, 1000
	maxPoints     = 500_000 // of all strokes together
	strokeCost    = 16      // what a stroke counts beside its points
	maxBacklog    = 10_000  // events that wait for someone who does not receive
)

// A board is the service of one drawing board.
type board struct {
	pb.UnimplementedBoardServer
	stopped <-chan struct{} // ends all streams

	mu      sync.Mutex
	strokes map[strokeKey]*pb.Part // each from its start
	order   []strokeKey            // in which they began
	points  int
	people  map[*person]bool
}

type strokeKey struct{ author, stroke uint32 }

func newBoard(stopped <-chan struct{}) *board {
	return &board{stopped: stopped, strokes: make(map[strokeKey]*pb.Part), people: make(map[*person]bool)}
}

// Echo implements [pb.BoardServer].
func (*board) Echo(_ context.Context, in *pb.Ping) (*pb.Ping, error) { return in, nil }

// Join implements [pb.BoardServer]. One goroutine receives, and this one sends.
func (b *board) Join(stream grpc.BidiStreamingServer[pb.Draw, pb.Event]) error {
	p := b.enter()
	defer b.leave(p)
	received := make(chan error, 1)
	go func() { received <- b.receive(stream, p) }()
	for {
		select {
		case <-p.wake:
			events, err := b.take(p)
			if err != nil {
				return err
			}
			for _, e := range events {
				if err := stream.Send(e); err != nil {
					return err
				}
			}
		case err := <-received:
			return err
		case <-b.stopped:
			return status.Error(codes.Unavailable, "the board is stopping")
		}
	}
}

// receive takes what p draws until p leaves.
func (b *board) receive(stream grpc.BidiStreamingServer[pb.Draw, pb.Event], p *person) error {
	for {
		in, err := stream.Recv()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case in.GetPart() != nil:
			err = b.draw(p, in.GetPart())
		case in.GetClear() != nil:
			b.clear()
		default:
			err = status.Error(codes.InvalidArgument, "neither a part of a stroke nor a clear")
		}
		if err != nil {
			return err
		}
	}
}

// draw adds a part of a stroke, and sends to the other people those of its points that are new.
func (b *board) draw(from *person, part *pb.Part) error {
	n := len(part.GetXy()) / 2
	if n == 0 || len(part.GetXy())%2 != 0 {
		return status.Error(codes.InvalidArgument, "a part of a stroke needs points of two numbers each")
	}
	for i, v := range part.GetXy() {
		if i%2 == 0 && v > width || i%2 != 0 && v > height {
			return status.Errorf(codes.InvalidArgument, "a point is outside the board, which is %d by %d", width, height)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	key := strokeKey{part.GetAuthor(), part.GetStroke()}
	s := b.strokes[key]
	known := len(s.GetXy()) / 2
	start := int(part.GetStart())
	if start > known || start+n <= known {
		return nil // of a stroke that was removed, or sent again
	}
	cost := start + n - known
	if s == nil {
		cost += strokeCost
	}
	if b.points+cost > maxPoints {
		return status.Errorf(codes.ResourceExhausted, "the board is full: it holds %d points", maxPoints)
	}
	b.points += cost
	if s == nil {
		s = &pb.Part{Author: part.GetAuthor(), Stroke: part.GetStroke(), Color: part.GetColor()}
		b.strokes[key] = s
		b.order = append(b.order, key)
	}
	fresh := part.GetXy()[2*(known-start):]
	s.Xy = append(s.Xy, fresh...)
	b.tellLocked(from, &pb.Event{What: &pb.Event_Part{Part: &pb.Part{
		Author: s.GetAuthor(), Stroke: s.GetStroke(), Start: uint32(known), Color: s.GetColor(), Xy: fresh,
	}}})
	return nil
}

// clear removes all strokes. Everyone gets this event at the same position among the others.
func (b *board) clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.strokes)
	b.order, b.points = nil, 0
	b.tellLocked(nil, &pb.Event{What: &pb.Event_Clear{Clear: &pb.Clear{}}})
}
