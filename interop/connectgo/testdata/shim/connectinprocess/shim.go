// Package connectinprocess replaces Connect's package in its tests.
package connectinprocess

import (
	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectinprocess"
	"connectrpc.com/connect/v2/nearcallshim/near"
	nearconnect "github.com/nearcall/nearcall/connect"
)

var (
	ProtoCopy    = connectinprocess.ProtoCopy
	WithCopyFunc = connectinprocess.WithCopyFunc
)

type Option = connectinprocess.Option

// NewFor replaces New. opts have no effect.
func NewFor(t near.TB, server *connect.Server, opts ...Option) connect.Transport {
	t.Helper()
	near.Say()
	return nearconnect.NewTransport(near.Serve(t, server))
}
