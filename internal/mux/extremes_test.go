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
