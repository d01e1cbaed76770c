//go:build !linux

package nearcall

import "github.com/nearcall/nearcall/internal/transport/sock"

const sharesMemory = false

// toSharedMemory returns nil: this system has no upgrade for unix sockets.
func toSharedMemory(int64, bool) *sock.Upgrade { return nil }
