//go:build !linux

package sock

import "syscall"

// namespaceOf returns 0: there are none.
func namespaceOf(syscall.Conn) uint64 { return 0 }
