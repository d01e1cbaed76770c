package main

import (
	"strings"
	"testing"
	"time"
)

func TestTableIsAligned(t *testing.T) {
	got := formatTable([][]string{
		{"path", "call", "p50", "calls/s"},
		{"in process", "unary", "612 ns", "1,600,000"},
		nil,
		{"µs count as one", "x", "1.5 µs", "7"},
	}, 2)
	want := strings.Join([]string{
		"path              call       p50     calls/s",
		"--------------------------------------------",
		"in process        unary   612 ns   1,600,000",
		"",
		"µs count as one   x       1.5 µs           7",
		"",
	}, "\n")
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestFormatTime(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                         "0 ns",
		999:                       "999 ns",
		1000:                      "1.00 µs",
		9994:                      "9.99 µs",
		9996:                      "10.0 µs",
		99_960:                    "100 µs",
		123_456:                   "123 µs",
		999_600:                   "1.00 ms",
		12_345_678:                "12.3 ms",
		3 * time.Second:           "3.00 s",
		1234567 * time.Second:     "1234567 s",
		999_499 * time.Nanosecond: "999 µs",
	} {
		if got := formatTime(d); got != want {
			t.Errorf("%d ns: %q, want %q", d, got, want)
		}
	}
}

func TestFormatCountAndRatio(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 7.4: "7", 999: "999", 999.6: "1,000", 1234567: "1,234,567", 100000: "100,000"} {
		if got := formatCount(v); got != want {
			t.Errorf("count %v: %q, want %q", v, got, want)
		}
	}
	for v, want := range map[float64]string{1: "1.0", 0.44: "0.4", 9.94: "9.9", 9.96: "10", 123.4: "123"} {
		if got := formatRatio(v); got != want {
			t.Errorf("ratio %v: %q, want %q", v, got, want)
		}
	}
}
