//go:build amd64 || arm64

// Package goid tells goroutines apart.
package goid

// ID returns a number for the calling goroutine that no other running goroutine has. A
// later goroutine can get the same number.
//
// The number is the address of the runtime's data about the goroutine. Callers only compare it and
// never dereference it.
//
//go:noescape
func ID() uintptr
