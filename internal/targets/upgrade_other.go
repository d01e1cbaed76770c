//go:build !linux

package targets

import (
	"github.com/nearcall/nearcall/internal/nearpath"
	"github.com/nearcall/nearcall/internal/options"
)

const sharesMemory = false

// SharedMemory returns nil: this system has no upgrade for unix sockets.
func SharedMemory(*options.Connections, bool) *nearpath.Upgrade { return nil }
