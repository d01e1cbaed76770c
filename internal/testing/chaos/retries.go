package chaos

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc/stats"
)

// retries is a stats handler that counts transparent retries.
type retries struct{ n *atomic.Int64 }

func (retries) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (retries) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (retries) HandleConn(context.Context, stats.ConnStats)                       {}

func (r retries) HandleRPC(_ context.Context, s stats.RPCStats) {
	if b, ok := s.(*stats.Begin); ok && b.IsTransparentRetryAttempt {
		r.n.Add(1)
	}
}
