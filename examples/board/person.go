package main

import (
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/nearcall/nearcall/examples/board/boardpb"
)

// A person is one stream of the board. backlog is guarded by the board's mutex.
type person struct {
	wake    chan struct{} // has one element if backlog has some
	backlog []*pb.Event   // not sent yet
	limit   int           // of backlog: the picture at the beginning does not count
}

// enter adds a person, who gets the whole picture first.
func (b *board) enter() *person {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := &person{wake: make(chan struct{}, 1), limit: len(b.order) + maxBacklog}
	b.people[p] = true
	for _, key := range b.order {
		s := b.strokes[key]
		// A copy, because s grows. Its points do not change.
		whole := &pb.Part{Author: s.GetAuthor(), Stroke: s.GetStroke(), Color: s.GetColor(), Xy: slices.Clip(s.GetXy())}
		p.backlog = append(p.backlog, &pb.Event{What: &pb.Event_Part{Part: whole}})
	}
	b.countLocked()
	return p
}

func (b *board) leave(p *person) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.people, p)
	b.countLocked()
}

// countLocked tells everyone how many people there are. mu is held.
func (b *board) countLocked() {
	b.tellLocked(nil, &pb.Event{What: &pb.Event_People{People: &pb.People{Count: uint32(len(b.people))}}})
}

// tellLocked sends e to everyone but the person from. mu is held.
func (b *board) tellLocked(from *person, e *pb.Event) {
	for p := range b.people {
		if p == from || len(p.backlog) > p.limit {
			continue
		}
		p.backlog = append(p.backlog, e)
		select {
		case p.wake <- struct{}{}:
		default:
		}
	}
}

// take returns what waits for p. It fails if that has become too much.
func (b *board) take(p *person) ([]*pb.Event, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	events := p.backlog
	p.backlog = nil
	if len(events) > p.limit {
		return nil, status.Error(codes.ResourceExhausted, "too much is drawn for someone who receives so slowly")
	}
	return events, nil
}
