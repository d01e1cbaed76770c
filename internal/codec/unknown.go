package codec

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// fieldRanges are the field numbers that a message gives a meaning, its fields
// and those it leaves to extensions, as half-open ranges in increasing order
// that do not touch.
type fieldRanges [][2]protowire.Number

// merge puts ranges that do not overlap into the form of fieldRanges.
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

// excludes reports whether unknown is a sequence of fields that decoding
// would find unknown again, and would keep as they are.
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
