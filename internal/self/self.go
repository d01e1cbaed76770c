// Package self tells goroutines apart.
package self

// ID returns a number for the calling goroutine that no other running goroutine has. A
// later goroutine can get the same number.
func ID() uintptr { return id() }
