package loop

import (
	"bytes"
	"runtime"
	"strconv"
)

// header returns the first line of the caller's stack trace, such as "goroutine 7
// [running, locked to thread]:". b is the buffer.
func header(b []byte) []byte {
	line, _, _ := bytes.Cut(b[:runtime.Stack(b, false)], []byte("\n"))
	return line
}

// isBound reports whether the calling goroutine is bound to its thread. It takes
// about a microsecond.
func isBound() bool {
	var b [128]byte
	return bytes.Contains(header(b[:]), []byte("locked to thread"))
}

// goroutineNumber returns the number of the calling goroutine in stack traces. It
// takes about a microsecond.
func goroutineNumber() uint64 {
	var b [128]byte
	return numberOf(header(b[:]))
}

// numberOf returns the goroutine number in a header, or 0.
func numberOf(header []byte) uint64 {
	digits, _, _ := bytes.Cut(bytes.TrimPrefix(header, []byte("goroutine ")), []byte(" "))
	n, _ := strconv.ParseUint(string(digits), 10, 64)
	return n
}
