// Package hook lets this project's own modules reach what package nearcall
// does not export: transports that are handed in, and the test beds.
package hook

import (
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
)

// Dialer makes a nearcall.DialOption that has d open the sessions of a
// connection, whatever its target. Package nearcall sets it.
var Dialer func(d link.Dialer) any

// Loop returns a *loop.Loop as those see it who run handlers on it. Package loop
// sets it.
var Loop func(l any) wait.Loop
