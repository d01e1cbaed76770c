package main

import (
	"math"
	"testing"
	"time"
)

func TestTimesOfAnyLength(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"1": time.Second, "0.000000001": 1, "1ns": 1, "1e9": 1e9 * time.Second,
		"9223372037": math.MaxInt64, "1e300": math.MaxInt64, "inf": math.MaxInt64, "2562047h47m16.854775807s": math.MaxInt64,
		"0": 0, "-1": 0, "-1ns": 0, "-inf": 0, "nan": 0, "1e-300": 0, "2562048h": 0, "": 0, // errors
	} {
		var s seconds
		if err := s.Set(text); (err == nil) != (want > 0) || time.Duration(s) != want {
			t.Errorf("%q: %v, %v, want %v", text, time.Duration(s), err, want)
		}
	}
}
