package mux

import (
	"errors"
	"math"
	"runtime/metrics"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/keepalive"

	"github.com/nearcall/nearcall/internal/link"
)

const century = 100 * 365 * 24 * time.Hour

// never are values of MaxConnectionIdle and MaxConnectionAge with which a connection does not end.
var never = []time.Duration{math.MinInt64, -1, 0, math.MaxInt64 - 1, math.MaxInt64}

func TestAgesThatMeanNever(t *testing.T) {
	for _, idle := range never {
		for _, age := range never {
			synctest.Test(t, func(t *testing.T) {
				cs, ss, w := bySelf(t, keepalive.ServerParameters{MaxConnectionIdle: idle, MaxConnectionAge: age, Time: math.MaxInt64, Timeout: math.MaxInt64})
				pass(century)
				out := makes(t.Context(), cs, "/a/b", 1, 1)
				if err := w.first(t).Send(&link.Frame{Msg: ofBytes(1), HasMsg: true, End: &link.End{}}); err != nil {
					t.Error(err)
				}
				if got := <-out; got.err != nil {
					t.Errorf("idle for %v, age %v: %v", idle, age, got.err)
				}
				_ = cs.Close(errors.New("done"))
				<-ss.Gone()
			})
		}
	}
}

// A grace that is not positive ends the calls at once, unless it is zero, which stands for never.
func TestGracesOfAnyLength(t *testing.T) {
	for grace, ends := range map[time.Duration]bool{math.MinInt64: true, -1: true, 0: false, 1: true, math.MaxInt64: false} {
		synctest.Test(t, func(t *testing.T) {
			cs, ss, w := bySelf(t, keepalive.ServerParameters{MaxConnectionAge: time.Hour, MaxConnectionAgeGrace: grace, Time: math.MaxInt64})
			out := makes(t.Context(), cs, "/a/b", 1, 1)
			callee := w.first(t)
			<-cs.Done()
			pass(time.Second)
			if got := link.IsClosed(ss.Ended()); got != ends {
				t.Errorf("with a grace of %v the call has ended: %v", grace, got)
			}
			_ = callee.Send(&link.Frame{Msg: ofBytes(1), HasMsg: true, End: &link.End{}})
			if got := <-out; (got.err != nil) != ends {
				t.Errorf("with a grace of %v the call ends with %v", grace, got.err)
			}
			<-cs.Gone()
			<-ss.Gone()
		})
	}
}

// goroutines returns how many goroutines the process has started.
func goroutines() uint64 {
	all := []metrics.Sample{{Name: "/sched/goroutines-created:goroutines"}}
	metrics.Read(all)
	return all[0].Value.Uint64()
}

// A tiny MaxConnectionIdle ends a connection as soon as it is idle, and costs nothing while calls run.
func TestATinyIdleTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cs, ss, w := bySelf(t, keepalive.ServerParameters{MaxConnectionIdle: 1})
		out := makes(t.Context(), cs, "/a/b", 1, 1)
		callee := w.first(t)
		began := goroutines()
		pass(20 * time.Microsecond)
		if n := goroutines() - began; n > 1000 {
			t.Errorf("%d goroutines in 20 µs", n)
		}
		if err := callee.Send(&link.Frame{Msg: ofBytes(1), HasMsg: true, End: &link.End{}}); err != nil {
			t.Error(err)
		}
		if got := <-out; got.err != nil {
			t.Error(got.err)
		}
		<-cs.Gone()
		<-ss.Gone()
	})
}

func TestMinimaOfAnyLength(t *testing.T) {
	for d, want := range map[time.Duration]uint64{
		math.MinInt64: 0, -1: 0, 0: 0, 1: 1, time.Millisecond: 1, time.Millisecond + 1: 2, math.MaxInt64: 9_223_372_036_855,
	} {
		if ms := millis(d); ms != want {
			t.Errorf("%v are %d ms, want %d", d, ms, want)
		}
	}
}

// TestWindowsOfAnySize: messages of more than a connection's window arrive, whatever the windows are. On
// 32-bit systems a multiple of a large window does not fit an int.
func TestWindowsOfAnySize(t *testing.T) {
	const n = 256 << 10
	for _, c := range []struct{ window, connWindow, maxWindow, messages int }{
		{math.MinInt32, math.MinInt32, math.MinInt32, 3}, {1, 1, 1, 3}, {1, math.MaxInt32, 0, 3},
		{8 << 20, 0, 0, 40}, {8 << 20, 8 << 20, math.MaxInt32, 40}, {math.MaxInt32, 1, 0, 3}, {math.MaxInt32, math.MaxInt32, math.MaxInt32, 3},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := &witness{}
			o := Options{Window: c.window, ConnWindow: c.connWindow, MaxWindow: c.maxWindow}
			cs, ss := pair(t, o, o, w)
			out, err := cs.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}})
			if err != nil {
				t.Fatal(err)
			}
			in := w.first(t)
			sent := make(chan error, 1)
			go func() {
				for range c.messages {
					if err := out.Send(&link.Frame{Msg: ofBytes(n), HasMsg: true}); err != nil {
						sent <- err
						return
					}
				}
				sent <- nil
			}()
			for range c.messages {
				if b, err := receive(in, math.MaxInt); err != nil || len(b) != n {
					t.Fatalf("%+v: %d bytes, %v", c, len(b), err)
				}
			}
			if err := <-sent; err != nil {
				t.Errorf("%+v: %v", c, err)
			}
			_ = cs.Close(errors.New("done"))
			<-ss.Gone()
		})
	}
}
