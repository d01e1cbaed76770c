package server

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/testing/callservice"
)

// A trace records the interceptors and handlers of a call in the order they ran.
type trace []string

func (t *trace) pass(format string, args ...any) { *t = append(*t, fmt.Sprintf(format, args...)) }

// want is the trace of n interceptors around what.
func want(n int, what string) trace {
	var t trace
	for i := range n {
		t.pass("in %d", i)
	}
	t.pass("%s", what)
	for i := range n {
		t.pass("out %d", n-1-i)
	}
	return t
}

func TestInterceptorsRunInOrder(t *testing.T) {
	for n := range 5 {
		for _, side := range []string{"client", "server"} {
			t.Run(fmt.Sprintf("%d on the %s", n, side), func(t *testing.T) {
				var got trace
				h := handlers{
					Unary: func(_ context.Context, in *msg) (*msg, error) {
						got.pass("unary")
						return in, nil
					},
					Stream: func(grpc.ServerStream) error {
						got.pass("stream")
						return nil
					},
				}
				var b *bed
				if side == "client" {
					b = start(t, h, nil, func(c *clientSetup) { interceptClient(c, n, &got) })
				} else {
					b = start(t, h, func(c *options.Server) { interceptServer(c, n, &got) }, nil)
				}
				_, err := b.call(context.Background())
				callservice.WantCode(t, err, codes.OK)
				if want := want(n, "unary"); !slices.Equal(got, want) {
					t.Errorf("unary: %q, want %q", got, want)
				}
				got = nil
				s, err := b.NewStream(t.Context(), streamDesc, streamMethod)
				if err != nil {
					t.Fatal(err)
				}
				if err := s.RecvMsg(new(msg)); err == nil {
					t.Error("a message arrived")
				}
				b.server.GracefulStop() // waits until a stream's interceptors have returned
				order := want(n, "stream")
				if side == "client" { // which have opened it before the handler runs
					got = slices.DeleteFunc(got, func(s string) bool { return s == "stream" })
					order = slices.DeleteFunc(order, func(s string) bool { return s == "stream" })
				}
				if !slices.Equal(got, order) {
					t.Errorf("stream: %q, want %q", got, order)
				}
			})
		}
	}
}

func interceptClient(c *clientSetup, n int, got *trace) {
	for i := range n {
		c.ClientUnaryChain = append(c.ClientUnaryChain, func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			got.pass("in %d", i)
			defer got.pass("out %d", i)
			return next(ctx, method, req, reply, cc, opts...)
		})
	}
	var opened trace // separate, as the handler runs concurrently
	for i := range n {
		c.ClientStreamChain = append(c.ClientStreamChain, func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			opened.pass("in %d", i)
			s, err := next(ctx, desc, cc, method, opts...)
			opened.pass("out %d", i)
			if i == 0 {
				return joined{s, got, &opened}, err
			}
			return s, err
		})
	}
}

// joined is a stream whose RecvMsg appends the trace from to the trace to.
type joined struct {
	grpc.ClientStream
	to, from *trace
}

func (j joined) RecvMsg(m any) error {
	err := j.ClientStream.RecvMsg(m)
	*j.to = append(*j.to, *j.from...)
	return err
}

func interceptServer(c *options.Server, n int, got *trace) {
	for i := range n {
		c.ServerUnaryChain = append(c.ServerUnaryChain, func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			got.pass("in %d", i)
			defer got.pass("out %d", i)
			return next(ctx, req)
		})
		c.ServerStreamChain = append(c.ServerStreamChain, func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			got.pass("in %d", i)
			defer got.pass("out %d", i)
			return next(srv, ss)
		})
	}
}
