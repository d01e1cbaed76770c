package durations

import (
	"math"
	"testing"
	"time"
)

func TestOf(t *testing.T) {
	for ns, want := range map[float64]time.Duration{
		0: 0, 1: 1, -1: -1, 1.9: 1, 1e9: time.Second,
		1 << 62: 1 << 62, 1 << 63: Longest, 1e300: Longest, math.Inf(1): Longest,
		-1 << 63: math.MinInt64, -1e300: math.MinInt64, math.Inf(-1): math.MinInt64,
	} {
		if d := Of(ns); d != want {
			t.Errorf("Of(%v) is %v, want %v", ns, d, want)
		}
	}
	if d := Of(math.NaN()); d != 0 {
		t.Errorf("Of(NaN) is %v", d)
	}
}

func TestSum(t *testing.T) {
	for _, c := range []struct{ a, b, want time.Duration }{
		{1, 2, 3},
		{Longest, 0, Longest}, {Longest, 1, Longest}, {Longest, Longest, Longest}, {Longest - 1, 1, Longest},
		{math.MinInt64, 0, math.MinInt64}, {math.MinInt64, -1, math.MinInt64}, {math.MinInt64, math.MinInt64, math.MinInt64},
		{Longest, math.MinInt64, -1}, {Longest, -Longest, 0},
	} {
		if d := Sum(c.a, c.b); d != c.want {
			t.Errorf("%v and %v are %v, want %v", c.a, c.b, d, c.want)
		}
		if d := Sum(c.b, c.a); d != c.want {
			t.Errorf("%v and %v are %v, want %v", c.b, c.a, d, c.want)
		}
	}
}

// A connection's age is within a tenth of what the server allows, and jittered. An age that means never
// is far away.
func TestAge(t *testing.T) {
	const century = 100 * 365 * 24 * time.Hour
	for _, d := range []time.Duration{1, 9, 10, time.Second, time.Hour, century, Longest / 2, Longest - 1, Longest} {
		least, most := Longest, time.Duration(0)
		for range 200 {
			age := Age(d)
			least, most = min(least, age), max(most, age)
		}
		if least < 0 || d >= 10 && least < d-d/10-1 || most > Sum(d, d/10+1) {
			t.Errorf("ages of %v are %v to %v", d, least, most)
		}
		if d >= time.Second && d < Longest && most-least < d/100 {
			t.Errorf("ages of %v are from %v to %v only", d, least, most)
		}
	}
	if d := Age(Longest); d != Longest {
		t.Errorf("the longest age becomes %v, and is never in grpc-go", d)
	}
}

func TestRecheck(t *testing.T) {
	for d, want := range map[time.Duration]time.Duration{
		math.MinInt64: time.Millisecond, -1: time.Millisecond, 0: time.Millisecond, 1: time.Millisecond,
		time.Second: time.Second, Longest: Longest,
	} {
		if got := Recheck(d); got != want {
			t.Errorf("Recheck(%v) is %v", d, got)
		}
	}
}
