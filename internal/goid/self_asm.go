//go:build amd64 || arm64

package goid

// id returns the address of the runtime's data about the calling goroutine. Callers only compare
// it and never dereference it.
//
//go:noescape
func id() uintptr
