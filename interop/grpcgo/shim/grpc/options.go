package grpc

import (
	"github.com/nearcall/nearcall"
	g "google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
)

// A ServerOption is one of grpc-go and of nearcall at once.
type ServerOption interface{ server() serverOption }

type serverOption struct {
	grpc    []g.ServerOption
	near    []nearcall.ServerOption
	missing string // the name, where nearcall has nothing like it
}

func (o serverOption) server() serverOption { return o }

// EmptyServerOption changes nothing. Tests embed it in options of their own.
type EmptyServerOption struct{}

func (EmptyServerOption) server() serverOption { return serverOption{} }

// onServer is an option that nearcall has as well, or none of it where what it sets does not exist there.
func onServer(grpc g.ServerOption, near ...nearcall.ServerOption) ServerOption {
	return serverOption{grpc: []g.ServerOption{grpc}, near: near}
}

func mergeServer(opts []ServerOption) (all serverOption) {
	for _, opt := range opts {
		if opt == nil {
			continue
		}
		o := opt.server()
		all.grpc = append(all.grpc, o.grpc...)
		all.near = append(all.near, o.near...)
		if o.missing != "" {
			all.missing = o.missing
		}
	}
	return all
}

// A DialOption is one of grpc-go and of nearcall at once.
type DialOption interface{ client() dialOption }

type dialOption struct {
	grpc      []g.DialOption
	near      []nearcall.DialOption
	missing   string // the name, where nearcall has nothing like it
	resolvers []resolver.Builder
}

func (o dialOption) client() dialOption { return o }

// EmptyDialOption changes nothing.
type EmptyDialOption struct{}

func (EmptyDialOption) client() dialOption { return dialOption{} }

// onClient is an option that nearcall has as well. One that it does not have goes where docs/migrate.md says: into
// WithGRPCDialOptions.
func onClient(grpc g.DialOption, near ...nearcall.DialOption) DialOption {
	if len(near) == 0 {
		near = []nearcall.DialOption{nearcall.WithGRPCDialOptions(grpc)}
	}
	return dialOption{grpc: []g.DialOption{grpc}, near: near}
}

func mergeClient(opts []DialOption) (all dialOption) {
	for _, opt := range opts {
		if opt == nil {
			continue
		}
		o := opt.client()
		all.grpc = append(all.grpc, o.grpc...)
		all.near = append(all.near, o.near...)
		all.resolvers = append(all.resolvers, o.resolvers...)
		if o.missing != "" {
			all.missing = o.missing
		}
	}
	return all
}
