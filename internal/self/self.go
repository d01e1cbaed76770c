// Package self tells goroutines apart.
package self

// ID returns a number of the calling goroutine's, which no other that is there at
// the same time has. One that comes later may have it again.
func ID() uintptr { return id() }
