package grpc

import (
	"errors"
	"net/url"
	"sync"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/interop/grpcgo/shim/near"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/serviceconfig"
)

// parseServiceConfig is grpc-go's parser. It is internal to grpc-go; internals.go sets it
// in the copy.
var parseServiceConfig func(json string) *serviceconfig.ParseResult

// parsed holds the JSON of parse results. nearcall needs it, and the results do not contain it.
var parsed sync.Map // of *serviceconfig.ParseResult to string

// resolve builds the resolver if c has one and it was not built yet.
func (c *ClientConn) resolve(connect bool) {
	c.mu.Lock()
	c.connected = c.connected || connect
	if c.builder == nil || c.started || c.closed {
		c.mu.Unlock()
		return
	}
	c.started = true
	c.mu.Unlock()
	u, _ := url.Parse(c.target)
	r, err := c.builder.Build(resolver.Target{URL: *u}, resolverConn{c}, resolver.BuildOptions{})
	if err != nil {
		panic(err)
	}
	c.mu.Lock()
	c.resolver = r
	c.mu.Unlock()
}

// A resolverConn implements resolver.ClientConn for a client of nearcall.
type resolverConn struct{ c *ClientConn }

// UpdateState makes a client for the first address, with the service config.
func (r resolverConn) UpdateState(s resolver.State) error {
	addrs := s.Addresses
	for _, e := range s.Endpoints {
		addrs = append(addrs, e.Addresses...)
	}
	if len(addrs) == 0 {
		return errors.New("no addresses")
	}
	config := ""
	if s.ServiceConfig != nil {
		if json, ok := parsed.Load(s.ServiceConfig); ok {
			config = json.(string)
		}
	}
	return r.c.use(addrs[0].Addr, config)
}

// use replaces the client of nearcall with one for addr and config, unless they are unchanged.
func (c *ClientConn) use(addr, config string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.conn != nil && c.addr == addr && c.config == config {
		return nil
	}
	opts := c.opts
	if config != "" {
		opts = append(opts[:len(opts):len(opts)], nearcall.WithDefaultServiceConfig(config))
	}
	n, err := nearcall.NewClient(near.Target(addr, c.secure), opts...)
	if err != nil {
		return err
	}
	if c.connected {
		n.Connect()
	}
	if c.conn != nil {
		c.replaced = append(c.replaced, c.conn)
	} else {
		close(c.ready)
	}
	c.conn, c.addr, c.config = n, addr, config
	return nil
}

// ReportError does nothing: tests that check for the error are about resolvers.
func (r resolverConn) ReportError(error) {}

// NewAddress calls UpdateState.
func (r resolverConn) NewAddress(addrs []resolver.Address) {
	_ = r.UpdateState(resolver.State{Addresses: addrs})
}

// ParseServiceConfig parses json and stores it in parsed.
func (r resolverConn) ParseServiceConfig(json string) *serviceconfig.ParseResult {
	result := parseServiceConfig(json)
	parsed.Store(result, json)
	return result
}
