package sock

import (
	"context"
	"net"
	"time"

	"github.com/nearcall/nearcall/internal/nearpath"
	"github.com/nearcall/nearcall/internal/options"
)

// serverOptions returns the defaults of a server's connections, clientOptions those of a client.
func serverOptions() *options.Connections { return &options.NewServer(nil).Connections }
func clientOptions() *options.Client      { return options.NewClient(nil) }

// within returns the defaults of a server, with another time limit of a handshake.
func within(d time.Duration) *options.Connections {
	c := serverOptions()
	c.HandshakeTime = d
	return c
}

// dialsWith returns the defaults of a client with its own function that opens connections.
func dialsWith(conn net.Conn) *options.Client {
	c := clientOptions()
	c.ConnDialer = func(context.Context, string) (net.Conn, error) { return conn, nil }
	return c
}

// with returns Options with c and without an upgrade.
func with(c *options.Connections) Options { return Options{Options: nearpath.Options{Config: c}} }
