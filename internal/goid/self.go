// Package goid tells goroutines apart.
package goid

// ID returns a number for the calling goroutine that no other running goroutine has. A
// later goroutine can get the same number.
func ID() uintptr { return id() }
