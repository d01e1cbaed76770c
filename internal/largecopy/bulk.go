// Package largecopy copies large pieces of memory.
//
// Go's copy of megabytes is one piece of assembly, in which a goroutine cannot be stopped. A
// garbage collector that wants to look at its stack meanwhile spins and sends it signals, and
// goroutines that help the collector wait as well. The functions of this package let the goroutine
// be stopped every 64 KiB. The memory that they copy from and to must not overlap.
package largecopy

import (
	"strings"
	"unsafe"
)

// step is how many bytes are copied at once. It takes some microseconds.
const step = 64 << 10

// Copy is copy.
func Copy(dst, src []byte) int {
	if len(src) <= step {
		return copy(dst, src)
	}
	return copyLarge(dst, src)
}

func copyLarge(dst, src []byte) (n int) {
	for n < min(len(dst), len(src)) {
		n += copyStep(dst[n:], src[n:])
	}
	return n
}

// copyStep copies a step. A goroutine that calls a function can be stopped there.
//
//go:noinline
func copyStep(dst, src []byte) int { return copy(dst, src[:min(step, len(src))]) }

// Append is append(b, src...).
func Append(b, src []byte) []byte {
	if len(src) <= step {
		return append(b, src...)
	}
	return appendLarge(b, src)
}

// AppendString is append(b, s...).
func AppendString(b []byte, s string) []byte {
	if len(s) <= step {
		return append(b, s...)
	}
	return appendLarge(b, unsafe.Slice(unsafe.StringData(s), len(s)))
}

func appendLarge(b, src []byte) []byte {
	n := len(b)
	if n+len(src) > cap(b) {
		return append(b, src...) // to grow, append copies both anyway
	}
	b = b[:n+len(src)]
	copyLarge(b[n:], src)
	return b
}

// Clone returns a copy of src, which is not nil.
func Clone(src []byte) []byte {
	if len(src) <= step {
		b := make([]byte, len(src))
		copy(b, src)
		return b
	}
	return cloneLarge(src)
}

func cloneLarge(src []byte) []byte {
	b := Uncleared(len(src))
	copyLarge(b, src)
	return b
}

// Uncleared returns n bytes that are not zero. n is greater than zero.
func Uncleared(n int) []byte {
	var s strings.Builder // its memory is not cleared
	s.Grow(n)
	s.WriteByte(0)
	return unsafe.Slice(unsafe.StringData(s.String()), n)
}
