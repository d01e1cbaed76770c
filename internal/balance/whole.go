package balance

import (
	"context"
	"maps"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	estats "google.golang.org/grpc/experimental/stats"
	"google.golang.org/grpc/stats"
)

// whole makes calls with grpc-go as a whole: retries, deadlines and HTTP filters are grpc-go's. Their
// messages go over the sessions, through the sessionConns. It implements [grpc.ClientConnInterface].
type whole struct {
	conn  *grpc.ClientConn
	creds []credentials.PerRPCCredentials // of all calls
	stats bool                            // the handlers of wholeStats get the events
}

func (w whole) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return w.conn.Invoke(context.WithValue(ctx, ownKey{}, w), method, args, reply, w.withCreds(opts)...)
}

func (w whole) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return w.conn.NewStream(context.WithValue(ctx, ownKey{}, w), desc, method, w.withCreds(opts)...)
}

// withCreds adds w's credentials to those of a call.
func (w whole) withCreds(opts []grpc.CallOption) []grpc.CallOption {
	all := allCreds(w.creds)
	for _, o := range opts {
		if own, ok := o.(grpc.PerRPCCredsCallOption); ok && own.Creds != nil {
			all = append(allCreds{own.Creds}, w.creds...)
		}
	}
	if len(all) == 0 {
		return opts
	}
	return append(opts[:len(opts):len(opts)], grpc.PerRPCCredentials(all))
}

// allCreds are several credentials. The last ones that set a key win.
// It implements [credentials.PerRPCCredentials].
type allCreds []credentials.PerRPCCredentials

func (cs allCreds) GetRequestMetadata(ctx context.Context, uri ...string) (map[string]string, error) {
	all := make(map[string]string)
	for _, c := range cs {
		md, err := c.GetRequestMetadata(ctx, uri...)
		if err != nil {
			return nil, err
		}
		maps.Copy(all, md)
	}
	return all, nil
}

func (cs allCreds) RequireTransportSecurity() bool {
	return slices.ContainsFunc(cs, credentials.PerRPCCredentials.RequireTransportSecurity)
}

// wholeStats returns a handler that reports only whole calls to h: the channel reports its own, and
// the connections. If h records metrics, it gets those of resolvers and balancers.
func wholeStats(h stats.Handler) stats.Handler {
	if m, ok := h.(estats.MetricsRecorder); ok {
		return struct {
			onlyWhole
			estats.MetricsRecorder
		}{onlyWhole{h}, m}
	}
	return onlyWhole{h}
}

type onlyWhole struct{ inner stats.Handler }

func isWhole(ctx context.Context) bool {
	w, _ := ctx.Value(ownKey{}).(whole)
	return w.stats
}

// TagRPC implements [stats.Handler].
func (h onlyWhole) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	if isWhole(ctx) {
		return h.inner.TagRPC(ctx, info)
	}
	return ctx
}

// HandleRPC implements [stats.Handler].
func (h onlyWhole) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if isWhole(ctx) {
		h.inner.HandleRPC(ctx, s)
	}
}

// TagConn implements [stats.Handler].
func (onlyWhole) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements [stats.Handler].
func (onlyWhole) HandleConn(context.Context, stats.ConnStats) {}
