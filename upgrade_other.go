//go:build !linux

package nearcall

import "github.com/nearcall/nearcall/internal/transport/sock"

// upgrade is nil: there is nothing that a unix socket could become.
var upgrade *sock.Upgrade
