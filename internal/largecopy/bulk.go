// Package largecopy copies large pieces of memory.
//
// Go copies megabytes in one piece of assembly, in which the runtime cannot stop the goroutine.
// If the garbage collector wants to look at the goroutine's stack meanwhile, it spins and sends
// signals, and goroutines that help the collector wait as well. With the functions of this
// package the runtime can stop the goroutine every 64 KiB. The memory that they copy from and to
// must not overlap.
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

// copyStep copies a step. The runtime can stop a goroutine where it calls a function.
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
		return append(b, src...) // append copies both anyway when it grows b
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

// Uncleared returns n bytes with any contents. n must be greater than zero.
func Uncleared(n int) []byte {
	var s strings.Builder // its memory is not cleared
	s.Grow(n)
	s.WriteByte(0)
	return unsafe.Slice(unsafe.StringData(s.String()), n)
}
