//go:build amd64 || arm64

package self

// id returns the address of what the runtime knows of the calling goroutine. It is
// compared, and never followed.
//
//go:noescape
func id() uintptr
