package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/serviceconfig"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/counters"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	target "github.com/nearcall/nearcall/internal/targets"
)

func resolveCommand() *cobra.Command {
	f, asJSON := &connFlags{maxTime: seconds(5 * time.Second)}, false
	c := &cobra.Command{
		Use: "resolve TARGET", Short: "print the endpoints of a target, and the path that calls take to each",
		Long: "It asks the target's resolver, prints what that returns, and connects to each address as nearcall.NewClient\n" +
			"does. The columns say which protocol the server speaks, whether over TLS, by which path calls travel, and why\n" +
			"not by a nearer one. A client in the server's own process calls it in process, which this command cannot see.\n" +
			"It has grpc-go's resolvers. Others, such as those of etcd and xDS, exist only in programs that import them.",
		Annotations: map[string]string{exits: "Exit codes: 0 an endpoint was reached, 1 none was, 2 wrong command line, 130 interrupted"},
		Args:        cobra.ExactArgs(1), ValidArgsFunction: f.complete(nil),
		RunE: func(c *cobra.Command, args []string) error {
			r, err := f.resolve(c.Context(), args[0])
			if err != nil {
				return err
			}
			if asJSON {
				err = writeJSON(c.OutOrStdout(), r)
			} else {
				r.write(c.OutOrStdout())
			}
			return cmp.Or(err, r.failure())
		},
	}
	f.addTLS(c)
	c.Flags().Var(&f.maxTime, "max-time", "give the resolver, and then each endpoint, this `time`: seconds, or a time such as 500ms")
	c.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	return c
}

// A resolution is the result of resolving a target.
type resolution struct {
	Target      string     `json:"target"`
	Resolver    string     `json:"resolver,omitempty"` // the scheme; empty for nearcall's own targets
	Config      string     `json:"service_config,omitempty"`
	ConfigError string     `json:"service_config_error,omitempty"`
	Endpoints   []endpoint `json:"endpoints"`
	Proxy       bool       `json:"proxy,omitempty"` // clients connect through a proxy
}

// An endpoint is one address, and what listens there.
type endpoint struct {
	Number     int    `json:"endpoint"` // an endpoint can have several addresses
	Address    string `json:"address"`
	ServerName string `json:"server_name,omitempty"` // that the resolver gave the address
	Speaks     string `json:"speaks,omitempty"`
	TLS        string `json:"tls,omitempty"`
	Path       string `json:"path,omitempty"`
	NotNearer  string `json:"not_nearer,omitempty"`
	Error      string `json:"error,omitempty"`
}

// resolve asks the resolver of text, and connects to each address.
func (f *connFlags) resolve(ctx context.Context, text string) (*resolution, error) {
	t, err := target.Parse(text)
	switch {
	case err != nil:
		return nil, usageError(fmt.Sprintf("%q: %v", text, err))
	case t.Insists:
		return nil, usageError(fmt.Sprintf("calls to %s always go to grpc-go, over HTTP/2; without grpc: the target can be nearer", text))
	}
	opts, creds, err := f.options(text)
	if err != nil {
		return nil, err
	}
	p := &prober{opts: opts, creds: creds, name: cmp.Or(f.authority, f.serverName), maxTime: time.Duration(f.maxTime)}
	r := &resolution{Target: text}
	if !t.IsGRPC() {
		r.Endpoints = []endpoint{{Address: text}}
		p.probe(ctx, &r.Endpoints[0], p.dialTarget)
		return r, nil
	}
	if err := r.ask(ctx, creds, p); err != nil {
		return nil, err
	}
	r.Proxy = options.NewClient(opts).Proxied()
	var all errgroup.Group
	all.SetLimit(16)
	for i := range r.Endpoints {
		all.Go(func() error {
			p.probe(ctx, &r.Endpoints[i], p.dialAddress)
			return nil
		})
	}
	_ = all.Wait()
	return r, ctx.Err()
}

// resolverOf finds a target's resolver as grpc.NewClient does.
func resolverOf(text string) (resolver.Builder, resolver.Target, error) {
	if u, err := url.Parse(text); err == nil {
		if b := resolver.Get(u.Scheme); b != nil {
			return b, resolver.Target{URL: *u}, nil
		}
		if u.Scheme != "" && strings.HasPrefix(text[len(u.Scheme):], "://") {
			return nil, resolver.Target{}, usageError(fmt.Sprintf("there is no resolver for %s: in this command; "+
				"a program that imports one can call nearcall.NewClient(%q)", u.Scheme, text))
		}
	}
	u, err := url.Parse("dns:///" + text)
	if err != nil {
		return nil, resolver.Target{}, usageError(fmt.Sprintf("malformed target %q: %v", text, err))
	}
	return resolver.Get("dns"), resolver.Target{URL: *u}, nil
}

// ask asks the target's resolver, and keeps the first thing that it says.
func (r *resolution) ask(ctx context.Context, creds credentials.TransportCredentials, p *prober) error {
	b, t, err := resolverOf(r.Target)
	if err != nil {
		return err
	}
	r.Resolver = b.Scheme()
	name := t.Endpoint()
	if o, ok := b.(resolver.AuthorityOverrider); ok {
		name = o.OverrideAuthority(t)
	}
	p.name = cmp.Or(p.name, name)
	said := make(firstAnswer, 1)
	res, err := b.Build(t, said, resolver.BuildOptions{DialCreds: creds})
	if err != nil {
		return fmt.Errorf("the resolver of %s: %w", r.Target, err)
	}
	defer res.Close()
	select {
	case a := <-said:
		if a.err != nil {
			return fmt.Errorf("the resolver of %s: %w", r.Target, a.err)
		}
		r.take(a.state)
		return ctx.Err()
	case <-time.After(p.maxTime):
		return fmt.Errorf("the resolver of %s has said nothing in %v", r.Target, p.maxTime)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// take keeps a resolver's result.
func (r *resolution) take(s resolver.State) {
	if c := s.ServiceConfig; c != nil {
		if raw, ok := c.Config.(rawConfig); ok {
			r.Config = raw.text
		}
		if c.Err != nil {
			r.ConfigError = c.Err.Error()
		}
	}
	if s.Endpoints == nil {
		for _, a := range s.Addresses {
			s.Endpoints = append(s.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{a}})
		}
	}
	r.Endpoints = []endpoint{}
	for i, e := range s.Endpoints {
		for _, a := range e.Addresses {
			r.Endpoints = append(r.Endpoints, endpoint{Number: i, Address: a.Addr, ServerName: a.ServerName})
		}
	}
}

type answered struct {
	state resolver.State
	err   error
}

// A firstAnswer is a [resolver.ClientConn] that keeps the first thing that a resolver says.
type firstAnswer chan answered

func (f firstAnswer) UpdateState(s resolver.State) error {
	f.say(answered{state: s})
	return nil
}

func (f firstAnswer) ReportError(err error) { f.say(answered{err: err}) }

func (f firstAnswer) NewAddress(all []resolver.Address) {
	f.say(answered{state: resolver.State{Addresses: all}})
}

func (f firstAnswer) say(a answered) {
	select {
	case f <- a:
	default:
	}
}

// ParseServiceConfig implements [resolver.ClientConn]. It leaves it to grpc-go to check text.
func (firstAnswer) ParseServiceConfig(text string) *serviceconfig.ParseResult {
	conn, err := grpc.NewClient("passthrough:///", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(text))
	if err == nil {
		_ = conn.Close()
	}
	return &serviceconfig.ParseResult{Config: rawConfig{text: text}, Err: err}
}

// A rawConfig is the text of a service config.
type rawConfig struct {
	serviceconfig.Config
	text string
}

// A prober connects to endpoints.
type prober struct {
	opts    []nearcall.DialOption
	creds   credentials.TransportCredentials // nil for none
	name    string                           // that servers must prove
	maxTime time.Duration
}

// probe connects to e with dial, and describes the connection in e.
func (p *prober) probe(ctx context.Context, e *endpoint, dial func(context.Context, *endpoint) error) {
	ctx, cancel := context.WithTimeout(ctx, p.maxTime)
	defer cancel()
	if err := dial(ctx, e); err != nil {
		hinted := (&remote{target: e.Address, secure: isTLS(p.creds)}).hint(status.Error(codes.Unavailable, err.Error()))
		e.Error = status.Convert(hinted).Message()
		return
	}
	path, ok := strings.CutPrefix(e.Address, "unix:")
	if !ok || e.Path != "unix" {
		return
	}
	if s, err := p.dial(ctx, "shm:"+path); err != nil { // a target that demands shared memory says why there is none
		e.NotNearer = err.Error()
	} else {
		_ = s.Close(errLooked)
	}
}

// dialTarget connects to one of nearcall's own targets.
func (p *prober) dialTarget(ctx context.Context, e *endpoint) error {
	s, err := p.dial(ctx, e.Address)
	if err != nil {
		return err
	}
	e.describe(s)
	if schemeOf(e.Address) == "tcp" {
		e.NotNearer = "tcp: targets stay on TCP; without tcp: the target can be nearer"
	}
	return nil
}

func (p *prober) dial(ctx context.Context, text string) (link.Session, error) {
	d, err := target.Dialer(text, options.NewClient(p.opts), target.Caller{})
	if err != nil {
		return nil, err
	}
	return d.Dial(ctx)
}

// dialAddress connects to an address as clients do to what a resolver returns.
func (p *prober) dialAddress(ctx context.Context, e *endpoint) error {
	name := cmp.Or(e.ServerName, p.name)
	all := target.NewEndpoints(options.NewClient(p.opts), target.Caller{}, p.creds)
	raw, err := all.Dial(ctx, name, e.Address)
	if err != nil {
		return err
	}
	s, over, auth, err := all.Handshake(ctx, name, raw)
	switch {
	case err != nil:
		return err
	case s != nil:
		e.describe(s)
		return nil
	}
	e.Speaks, e.TLS, e.Path = "gRPC", tlsOf(auth), raw.RemoteAddr().Network()
	e.NotNearer = "the server speaks only gRPC, over HTTP/2"
	return over.Close()
}

var errLooked = errors.New("the client wanted to know no more")

// describe describes a session, and closes it.
func (e *endpoint) describe(s link.Session) {
	peer := s.Peer()
	e.Speaks, e.TLS, e.NotNearer, e.Path = "nearcall", tlsOf(peer.AuthInfo), peer.NotNearer, peer.Path.String()
	if peer.Path == counters.Other && peer.Addr != nil {
		e.Path = peer.Addr.Network()
	}
	_ = s.Close(errLooked)
}

// tlsOf returns the version of TLS in auth, "" without TLS.
func tlsOf(auth credentials.AuthInfo) string {
	if info, ok := auth.(credentials.TLSInfo); ok {
		return tls.VersionName(info.State.Version)
	}
	if auth != nil && auth.AuthType() == "tls" {
		return "TLS"
	}
	return ""
}

// failure returns an error if no endpoint was reached.
func (r *resolution) failure() error {
	for _, e := range r.Endpoints {
		if e.Error == "" {
			return nil
		}
	}
	if len(r.Endpoints) == 0 {
		return fmt.Errorf("the resolver of %s has returned no addresses", r.Target)
	}
	return errors.New("no endpoint can be reached")
}

// write prints a table.
func (r *resolution) write(w io.Writer) {
	if len(r.Endpoints) > 0 {
		cells := [][]string{{"address", "server name", "speaks", "TLS", "path", "why not nearer, or what failed"}}
		for _, e := range r.Endpoints {
			cells = append(cells, []string{e.Address, e.ServerName, cmp.Or(e.Speaks, "-"), cmp.Or(e.TLS, "-"), cmp.Or(e.Path, "-"), cmp.Or(e.Error, e.NotNearer)})
		}
		writeTable(w, cells)
	}
	if r.Config != "" {
		fmt.Fprintf(w, "\nservice config: %s\n", inset(r.Config))
	}
	if r.ConfigError != "" {
		fmt.Fprintf(w, "\nthe service config has an error: %s\n", inset(r.ConfigError))
	}
	if r.Proxy {
		fmt.Fprint(w, "\nHTTPS_PROXY is set: clients connect through that proxy, unless NO_PROXY excepts the address, and have no nearer path.\n")
	}
}
