//go:build !amd64 && !arm64

// Package goid tells goroutines apart.
package goid

import (
	"bytes"
	"runtime"
	"strconv"
)

// ID returns a number for the calling goroutine that no other running goroutine has. A
// later goroutine can get the same number. It is the one in stack traces, and takes about a
// microsecond.
func ID() uintptr {
	var b [64]byte
	head := bytes.TrimPrefix(b[:runtime.Stack(b[:], false)], []byte("goroutine "))
	digits, _, _ := bytes.Cut(head, []byte(" "))
	n, _ := strconv.ParseUint(string(digits), 10, 64)
	return uintptr(n)
}
