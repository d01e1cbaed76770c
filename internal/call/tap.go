package call

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
)

// The tap handle of a server is asked as in grpc-go: for each call, known method or not, before the
// call waits for a place and before stats handlers and interceptors see it, on the goroutine that
// reads the connection. In process that is the caller's.

// askTap asks the server's tap handle. It returns false if the handle has refused the call, which
// has then ended.
func (c *serverCall) askTap() bool {
	handle := c.conn.server.cfg.Tap
	if handle == nil {
		return true
	}
	c.conn.reportBegin() // for the context
	ctx, refusal := AskTap(c, handle, &tap.Info{FullMethodName: c.open.Method, Header: c.incomingMetadata()})
	if refusal == nil {
		c.derive(ctx)
		return true
	}
	c.finish(refusal)
	c.conn.admission.giveBackAhead()
	if c.carried != nil && c.carried.stream == nil {
		c.carried.leave()
	}
	return false
}

// AskTap asks a tap handle about a call with the context ctx. It returns the call's new context, or
// why the call is refused.
func AskTap(ctx context.Context, handle tap.ServerInHandle, info *tap.Info) (context.Context, *status.Status) {
	tapped, err := handle(ctx, info)
	if err != nil {
		if st, ok := status.FromError(err); ok {
			return nil, st
		}
		return nil, status.New(codes.PermissionDenied, err.Error())
	}
	if tapped.Err() != nil {
		return nil, status.New(codes.DeadlineExceeded, context.DeadlineExceeded.Error())
	}
	return tapped, nil
}
