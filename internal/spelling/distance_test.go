package spelling

import "testing"

func TestDistanceCountsSlips(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0},
		{"unix", "unix", 0},
		{"", "tcp", 3},
		{"tpc", "tcp", 1},    // swapped
		{"unx", "unix", 1},   // left out
		{"unnix", "unix", 1}, // doubled
		{"shn", "shm", 1},    // replaced
		{"inprc", "inproc", 1},
		{"Place", "List", 5},
	} {
		if got := Distance(c.a, c.b); got != c.want {
			t.Errorf("Distance(%q, %q) is %d, want %d", c.a, c.b, got, c.want)
		}
		if got := Distance(c.b, c.a); got != c.want {
			t.Errorf("Distance(%q, %q) is %d, want %d", c.b, c.a, got, c.want)
		}
	}
}
