//go:build !linux

package targets

import (
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/transport/sock"
)

const sharesMemory = false

// SharedMemory returns nil: this system has no upgrade for unix sockets.
func SharedMemory(*options.Connections, bool) *sock.Upgrade { return nil }
