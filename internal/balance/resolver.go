package balance

import (
	"slices"
	"strings"

	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/serviceconfig"

	"github.com/nearcall/nearcall/internal/grpcinside"
	"github.com/nearcall/nearcall/internal/targets"
)

// resolvers returns the resolvers that may resolve the target, wrapped. grpc-go takes the first one
// with the target's scheme.
func (c *Channel) resolvers() []resolver.Builder {
	all := make([]resolver.Builder, 0, len(c.cfg.Options.UserResolvers)+3)
	for _, b := range c.cfg.Options.UserResolvers {
		all = append(all, wrappedBuilder{b, c})
	}
	own, _, _ := strings.Cut(c.cfg.Target, ":")
	for _, scheme := range []string{strings.ToLower(own), "dns", resolver.GetDefaultScheme()} {
		if b := resolver.Get(scheme); b != nil {
			all = append(all, wrappedBuilder{b, c})
		}
	}
	return all
}

// A wrappedBuilder builds a user's or grpc-go's resolver with a wrappedConn.
type wrappedBuilder struct {
	resolver.Builder
	channel *Channel
}

// Build implements [resolver.Builder].
func (b wrappedBuilder) Build(t resolver.Target, cc resolver.ClientConn, o resolver.BuildOptions) (resolver.Resolver, error) {
	o.DialCreds, o.Dialer = b.channel.cfg.Creds, b.channel.userDial()
	b.channel.resolved.Store(false)
	r, err := b.Builder.Build(t, wrappedConn{cc, b.channel}, o)
	if err != nil {
		b.channel.resolved.Store(true)
		return nil, err // grpc-go closes any other resolver
	}
	return r, nil
}

// OverrideAuthority implements [resolver.AuthorityOverrider]. For other resolvers it returns
// grpc-go's default.
func (b wrappedBuilder) OverrideAuthority(t resolver.Target) string {
	authority, endpoint := "", t.Endpoint()
	switch o, ok := b.Builder.(resolver.AuthorityOverrider); {
	case ok:
		authority = o.OverrideAuthority(t)
	case strings.HasPrefix(endpoint, ":"):
		authority = "localhost" + targets.Escape(endpoint)
	default:
		authority = targets.Escape(endpoint)
	}
	b.channel.authority = authority
	return authority
}

// A wrappedConn rewrites the service configs of a resolver, and notices its first result.
// It implements [resolver.ClientConn].
type wrappedConn struct {
	resolver.ClientConn
	channel *Channel
}

func (c wrappedConn) UpdateState(s resolver.State) error {
	defer c.channel.resolved.Store(true)
	s.ServiceConfig = c.rewritten(s.ServiceConfig)
	if c.channel.userDial() == nil { // a program's own dialer may understand an address in its own way
		s.Endpoints = nearestFirst(s.Endpoints)
	}
	return c.ClientConn.UpdateState(s)
}

// rewritten returns the service config of a resolver. If another connection than c has parsed it,
// rewritten parses it again, or leaves it if its text is not known: then grpc-go builds a policy that
// nothing wraps.
func (c wrappedConn) rewritten(r *serviceconfig.ParseResult) *serviceconfig.ParseResult {
	if r == nil || r.Err != nil {
		return r
	}
	text, ok := grpcinside.TextOf(r.Config)
	if !ok || grpcinside.IsRewritten(text) {
		return r
	}
	return c.ParseServiceConfig(text)
}

// nearestFirst returns a copy of endpoints in which policies try the nearest address of each first. Of
// equally near ones the first remains so.
func nearestFirst(endpoints []resolver.Endpoint) []resolver.Endpoint {
	endpoints = slices.Clone(endpoints)
	for i := range endpoints {
		e := &endpoints[i]
		e.Addresses = slices.Clone(e.Addresses)
		slices.SortStableFunc(e.Addresses, func(a, b resolver.Address) int { return targets.CompareDistance(a.Addr, b.Addr) })
	}
	return endpoints
}

func (c wrappedConn) ReportError(err error) {
	c.ClientConn.ReportError(err)
	c.channel.resolved.Store(true)
}

func (c wrappedConn) NewAddress(addrs []resolver.Address) {
	//lint:ignore SA1019 resolvers may still call it
	c.ClientConn.NewAddress(addrs)
	c.channel.resolved.Store(true)
}

func (c wrappedConn) ParseServiceConfig(json string) *serviceconfig.ParseResult {
	return c.ClientConn.ParseServiceConfig(rewrite(json))
}
