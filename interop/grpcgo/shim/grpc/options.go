package grpc

import (
	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/interop/grpcgo/shim/near"
	g "google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
)

// A ServerOption is an option for grpc-go and for nearcall.
type ServerOption interface{ server() serverOption }

type serverOption struct {
	grpc    []g.ServerOption
	near    []nearcall.ServerOption
	missing string // the option's name if nearcall has no equivalent for its own clients
}

func (o serverOption) server() serverOption { return o }

// EmptyServerOption changes nothing. Tests embed it in their own options.
type EmptyServerOption struct{}

func (EmptyServerOption) server() serverOption { return serverOption{} }

// onServer returns an option with its equivalents in nearcall. Without any, the option is
// passed to GRPCServerOptions, as docs/migrate.md says.
func onServer(grpc g.ServerOption, near ...nearcall.ServerOption) ServerOption {
	if len(near) == 0 {
		near = []nearcall.ServerOption{nearcall.GRPCServerOptions(grpc)}
	}
	return serverOption{grpc: []g.ServerOption{grpc}, near: near}
}

func server1[T any](grpc func(T) g.ServerOption) func(T) ServerOption {
	return func(v T) ServerOption { return onServer(grpc(v)) }
}

func server2[T any](grpc func(T) g.ServerOption, near func(T) nearcall.ServerOption) func(T) ServerOption {
	return func(v T) ServerOption { return onServer(grpc(v), near(v)) }
}

func serverN[T any](grpc func(...T) g.ServerOption, near func(...T) nearcall.ServerOption) func(...T) ServerOption {
	return func(vs ...T) ServerOption { return onServer(grpc(vs...), near(vs...)) }
}

// missing returns an option that nearcall has for clients of grpc-go only.
func missing(name string, grpc g.ServerOption) ServerOption {
	return serverOption{[]g.ServerOption{grpc}, []nearcall.ServerOption{nearcall.GRPCServerOptions(grpc)}, name}
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

// A DialOption is an option for grpc-go and for nearcall.
type DialOption interface{ client() dialOption }

type dialOption struct {
	grpc      []g.DialOption
	near      []nearcall.DialOption
	missing   string // the option's name if nearcall has no equivalent
	resolvers []resolver.Builder
	secure    []bool // of each option with credentials, whether they secure connections; the last counts
}

func (o dialOption) client() dialOption { return o }

// EmptyDialOption changes nothing.
type EmptyDialOption struct{}

func (EmptyDialOption) client() dialOption { return dialOption{} }

// onClient returns an option with its equivalents in nearcall. Without any, the option is
// passed to WithGRPCDialOptions, as docs/migrate.md says.
func onClient(grpc g.DialOption, near ...nearcall.DialOption) DialOption {
	if len(near) == 0 {
		near = []nearcall.DialOption{nearcall.WithGRPCDialOptions(grpc)}
	}
	return dialOption{grpc: []g.DialOption{grpc}, near: near}
}

// forTransport returns an option for the buffers of grpc-go's transport, or for grpc.Dial.
// With it a client of the tests' own targets is the same as without.
func forTransport(grpc g.DialOption) DialOption {
	if near.On.OwnTargets() {
		return dialOption{}
	}
	return onClient(grpc)
}

func client1[T any](grpc func(T) g.DialOption) func(T) DialOption {
	return func(v T) DialOption { return onClient(grpc(v)) }
}

func client2[T any](grpc func(T) g.DialOption, near func(T) nearcall.DialOption) func(T) DialOption {
	return func(v T) DialOption { return onClient(grpc(v), near(v)) }
}

func client0(grpc func() g.DialOption, near func() nearcall.DialOption) func() DialOption {
	return func() DialOption { return onClient(grpc(), near()) }
}

func clientN[T any](grpc func(...T) g.DialOption, near func(...T) nearcall.DialOption) func(...T) DialOption {
	return func(vs ...T) DialOption { return onClient(grpc(vs...), near(vs...)) }
}

func transport1[T any](grpc func(T) g.DialOption) func(T) DialOption {
	return func(v T) DialOption { return forTransport(grpc(v)) }
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
		all.secure = append(all.secure, o.secure...)
		if o.missing != "" {
			all.missing = o.missing
		}
	}
	return all
}
