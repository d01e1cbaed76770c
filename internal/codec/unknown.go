package codec

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// fieldRanges are the numbers of a message's fields and extension ranges, as
// half-open intervals in increasing order. No interval touches the next.
type fieldRanges [][2]protowire.Number

// merge sorts the intervals, which must not overlap, and joins those that touch.
func (r fieldRanges) merge() fieldRanges {
	slices.SortFunc(r, func(x, y [2]protowire.Number) int { return cmp.Compare(x[0], y[0]) })
	var m fieldRanges
	for _, x := range r {
		if n := len(m); n > 0 && m[n-1][1] == x[0] {
			m[n-1][1] = x[1]
		} else {
			m = append(m, x)
		}
	}
	return m
}

func (r fieldRanges) has(num protowire.Number) bool {
	for _, x := range r {
		if num < x[1] {
			return x[0] <= num
		}
	}
	return false
}

// excludes reports whether unknown is a sequence of fields that decoding would
// treat as unknown again and keep byte for byte.
func (r fieldRanges) excludes(unknown []byte) bool {
	for len(unknown) > 0 {
		num, typ, n := protowire.ConsumeTag(unknown)
		if n < 0 || n != protowire.SizeTag(num) || num > protowire.MaxValidNumber || r.has(num) {
			return false
		}
		m := protowire.ConsumeFieldValue(num, typ, unknown[n:])
		if m < 0 {
			return false
		}
		unknown = unknown[n+m:]
	}
	return true
}
