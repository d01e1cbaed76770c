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

// parseServiceConfig is grpc-go's parser. The copy that the tests are built in sets it: it is internal to grpc-go.
var parseServiceConfig func(json string) *serviceconfig.ParseResult

// parsed has the JSON that results were parsed from: a result does not tell, and nearcall wants it.
var parsed sync.Map // of *serviceconfig.ParseResult to string

// resolve builds the resolver, if there is one and it is not built yet.
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

// A resolverConn is what a resolver sees of a ClientConn of nearcall's.
type resolverConn struct{ c *ClientConn }

// UpdateState makes a connection to the first address, with the service config.
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

// use replaces the connection of c by one to addr, unless it is one already.
func (c *ClientConn) use(addr, config string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.near != nil && c.addr == addr && c.config == config {
		return nil
	}
	opts := c.opts
	if config != "" {
		opts = append(opts[:len(opts):len(opts)], nearcall.WithDefaultServiceConfig(config))
	}
	n, err := nearcall.NewClient(near.Target(addr), opts...)
	if err != nil {
		return err
	}
	if c.connected {
		n.Connect()
	}
	if c.near != nil {
		c.replaced = append(c.replaced, c.near)
	} else {
		close(c.ready)
	}
	c.near, c.addr, c.config = n, addr, config
	return nil
}

// ReportError does nothing: a test that looks for it is about resolvers.
func (r resolverConn) ReportError(error) {}

// NewAddress is UpdateState.
func (r resolverConn) NewAddress(addrs []resolver.Address) {
	_ = r.UpdateState(resolver.State{Addresses: addrs})
}

// ParseServiceConfig parses json, and remembers it.
func (r resolverConn) ParseServiceConfig(json string) *serviceconfig.ParseResult {
	result := parseServiceConfig(json)
	parsed.Store(result, json)
	return result
}
