package mux

import (
	"cmp"
	"time"

	"github.com/nearcall/nearcall/internal/options"
)

// configured returns options with small windows that do not grow, and what set changes: by methods,
// whose effect depends on the side, or by fields.
func configured(client bool, set func(*options.Connections)) *options.Connections {
	var c *options.Connections
	if client {
		c = &options.NewClient([]options.DialOption{options.SetClient(func(o *options.Client) { set(&o.Connections) })}).Connections
	} else {
		c = &options.NewServer([]options.ServerOption{options.SetServer(func(o *options.Server) { set(&o.Connections) })}).Connections
	}
	c.StreamWindow, c.MaxStreamWindow, c.ConnWindow, c.MaxStreams = 64<<10, 64<<10, 1<<20, 0
	set(c)
	c.ConnWindow = max(c.ConnWindow, c.StreamWindow)
	return c
}

func (o Options) withDefaults() Options {
	if o.Config == nil {
		o.Config = configured(o.Client, func(*options.Connections) {})
	}
	o.HelloTime = cmp.Or(o.HelloTime, 2*time.Minute)
	return o
}

func newSession(conn Conn, o Options) *Session { return New(conn, o.withDefaults()) }
