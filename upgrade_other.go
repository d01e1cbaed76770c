//go:build !linux

package nearcall

import "github.com/nearcall/nearcall/internal/transport/sock"

const sharesMemory = false

// toSharedMemory returns nil: there is nothing that a unix socket could become.
func toSharedMemory(int64, bool) *sock.Upgrade { return nil }
