//go:build amd64 || arm64

package goid

// id returns the address of the runtime's data about the calling goroutine. It is only
// compared, never dereferenced.
//
//go:noescape
func id() uintptr
