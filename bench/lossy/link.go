package main

import (
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"time"
)

// Conditions are those of a link, the same in both directions.
type Conditions struct {
	Delay time.Duration // of a packet on an empty link: half the round trip
	Loss  float64       // part of the packets that is lost, from 0 to 1
	Rate  float64       // bytes a second
	Queue int           // bytes that can wait for their turn
}

// Limits of what a link keeps in memory.
const (
	largest = 2048    // bytes of a packet; the devices have packets of 1500
	crowded = 1 << 17 // packets under way
)

// A link carries packets in one direction. A packet that has not been lost waits for those
// before it, passes at the rate of the link, and arrives after the delay. If the queue is
// full it is dropped, as by a router.
type link struct {
	Conditions
	chance *rand.Rand

	// The figures can be read when carry has returned.
	passed, lost, dropped int
	late                  time.Duration // the worst delay that this process added
}

// newLink returns a link. Links with the same seed lose the same packets, by their numbers.
func newLink(c Conditions, seed uint64) *link {
	return &link{Conditions: c, chance: rand.New(rand.NewPCG(seed, seed))}
}

type packet struct {
	due  time.Time // when it arrives
	data []byte
}

// carry carries packets until one of the two is closed or fails. Each Read of from returns
// one packet.
func (l *link) carry(from io.Reader, to io.Writer) error {
	under := make(chan packet, crowded)
	var end error
	var delivery sync.WaitGroup
	delivery.Go(func() { end = l.deliver(under, to) })
	err := l.accept(from, under)
	close(under)
	delivery.Wait()
	return errors.Join(unlessClosed(err), unlessClosed(end))
}

// unlessClosed returns err unless it says that a device is closed, which is how a
// measurement ends.
func unlessClosed(err error) error {
	if errors.Is(err, os.ErrClosed) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe) {
		return nil
	}
	return err
}

// accept decides which packets are lost, and when the others arrive.
func (l *link) accept(from io.Reader, under chan<- packet) error {
	var free time.Time // when the link has passed everything before
	buf := make([]byte, largest)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return err
		}
		if l.chance.Float64() < l.Loss {
			l.lost++
			continue
		}
		now := time.Now()
		if free.Before(now) {
			free = now
		}
		if free.Sub(now).Seconds()*l.Rate+float64(n) > float64(l.Queue) {
			l.dropped++
			continue
		}
		free = free.Add(time.Duration(float64(n) / l.Rate * 1e9))
		select {
		case under <- packet{free.Add(l.Delay), append([]byte(nil), buf[:n]...)}:
			l.passed++
		default:
			l.dropped++
		}
	}
}

// deliver writes packets when they are due.
func (l *link) deliver(under <-chan packet, to io.Writer) error {
	for p := range under {
		time.Sleep(time.Until(p.due))
		l.late = max(l.late, time.Since(p.due))
		if _, err := to.Write(p.data); err != nil {
			return err
		}
	}
	return nil
}
