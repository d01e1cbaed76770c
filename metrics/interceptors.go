package metrics

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
)

// errPanic is the error of a call if its handler panics. It counts as Unknown.
var errPanic = errors.New("the handler panicked")

// UnaryInterceptor counts unary calls, for servers where speed matters more than completeness.
// Instead of using the stats handler, pass UnaryInterceptor to nearcall.ChainUnaryInterceptor and
// [Calls.StreamInterceptor] to nearcall.ChainStreamInterceptor, before other interceptors. The two
// interceptors do not see calls that fail before a handler runs, because the server does not have
// the method or cannot decode the request. They count the time of handlers and of later
// interceptors.
func (c *Calls) UnaryInterceptor(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (reply any, err error) {
	if m := c.method(info.FullMethod); m != nil {
		m.begun.Add(1)
		begin := time.Now()
		err = errPanic
		defer func() { m.end(time.Since(begin), err) }()
	}
	return handler(ctx, req)
}

// StreamInterceptor counts streams: see [Calls.UnaryInterceptor].
func (c *Calls) StreamInterceptor(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	if m := c.method(info.FullMethod); m != nil {
		m.begun.Add(1)
		begin := time.Now()
		err = errPanic
		defer func() { m.end(time.Since(begin), err) }()
	}
	return handler(srv, stream)
}
