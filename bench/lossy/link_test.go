package main

import (
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// An arrival is a packet that came out of a link, with the time since the start.
type arrival struct {
	after time.Duration
	first byte
}

// over returns what arrives of packets that are all sent at the start. A packet begins with
// its number.
func over(t *testing.T, c Conditions, seed uint64, packets, size int) (l *link, got []arrival) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l = newLink(c, seed)
		source, in := io.Pipe()
		out, sink := io.Pipe()
		ended := make(chan error, 1)
		go func() {
			ended <- l.carry(source, sink)
			sink.Close()
		}()
		start := time.Now()
		go func() {
			p := make([]byte, size)
			for n := range packets {
				p[0] = byte(n)
				_, _ = in.Write(p)
			}
			in.Close()
		}()
		buf := make([]byte, largest)
		for {
			n, err := out.Read(buf)
			if err == io.EOF {
				break
			}
			if err != nil || n != size {
				t.Errorf("a packet of %d bytes, %v", n, err)
				break
			}
			got = append(got, arrival{time.Since(start), buf[0]})
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return l, got
}

func TestPacketsPassAtTheRateAndArriveAfterTheDelay(t *testing.T) {
	l, got := over(t, Conditions{Delay: 25 * time.Millisecond, Rate: 1_000_000, Queue: 100_000}, 1, 4, 1000)
	want := []arrival{{26 * time.Millisecond, 0}, {27 * time.Millisecond, 1}, {28 * time.Millisecond, 2}, {29 * time.Millisecond, 3}}
	if !slices.Equal(got, want) {
		t.Errorf("arrivals are %v, want %v", got, want)
	}
	if l.passed != 4 || l.lost != 0 || l.dropped != 0 || l.late != 0 {
		t.Errorf("%d passed, %d lost, %d dropped, %v late", l.passed, l.lost, l.dropped, l.late)
	}
}

func TestAFullQueueDropsPackets(t *testing.T) {
	l, got := over(t, Conditions{Rate: 1_000_000, Queue: 3000}, 1, 10, 1000)
	want := []arrival{{time.Millisecond, 0}, {2 * time.Millisecond, 1}, {3 * time.Millisecond, 2}}
	if !slices.Equal(got, want) || l.dropped != 7 || l.passed != 3 {
		t.Errorf("arrivals are %v, want %v; %d were dropped", got, want, l.dropped)
	}
}

func TestLossesComeFromTheSeed(t *testing.T) {
	c := Conditions{Loss: 0.1, Rate: 1e9, Queue: 1 << 20}
	l, got := over(t, c, 7, 200, 100)
	if l.lost < 5 || l.lost > 50 || l.lost+len(got) != 200 || l.passed != len(got) {
		t.Errorf("%d of 200 packets lost, %d passed, %d arrived", l.lost, l.passed, len(got))
	}
	if _, again := over(t, c, 7, 200, 100); !slices.Equal(got, again) {
		t.Error("the same seed lost other packets")
	}
	if _, others := over(t, c, 8, 200, 100); slices.Equal(got, others) {
		t.Error("another seed lost the same packets")
	}
}
