package nearcall

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/targets"
)

// A whole is a connection of grpc-go. It implements [connection].
type whole struct {
	*grpc.ClientConn
	calls grpc.ClientConnInterface // makes the calls
	hint  string                   // appended to Unavailable errors
}

// newWhole returns a connection to a target that goes to grpc-go as a whole.
func newWhole(target string, t *targets.Target, o *options.Client) (*ClientConn, error) {
	if err := checkWhole(o); err != nil {
		return nil, fmt.Errorf("nearcall: cannot dial %q: %w", target, err)
	}
	conn, err := grpc.NewClient(t.Rest, o.ToGRPC...)
	if err != nil {
		return nil, named(err)
	}
	if !t.Insists {
		logger.Infof("calls to %q go to grpc-go, over HTTP/2, because of WithGRPCDialOptions", target)
	}
	return &ClientConn{opts: o, target: target, conn: &whole{conn, preparing{conn}, targets.Hint(t.Rest, o)}}, nil
}

// Invoke implements [connection]. It appends the hint to the error of a call that has not reached a
// server.
func (c *whole) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if c.hint == "" {
		return c.calls.Invoke(ctx, method, args, reply, opts...)
	}
	var server peer.Peer
	err := c.calls.Invoke(ctx, method, args, reply, append(slices.Clip(opts), grpc.Peer(&server))...)
	if server.Addr != nil {
		return err
	}
	return withHint(err, c.hint)
}

// NewStream implements [connection].
func (c *whole) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := c.calls.NewStream(ctx, desc, method, opts...)
	return s, withHint(err, c.hint)
}

// GRPC implements [connection].
func (c *whole) GRPC() *grpc.ClientConn { return c.ClientConn }

// Observe implements [connection]. Here f may call the connection.
func (c *whole) Observe(f func(connectivity.State)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for s := c.GetState(); ; s = c.GetState() {
			f(s)
			if s == connectivity.Shutdown || !c.WaitForStateChange(ctx, s) {
				return
			}
		}
	}()
	return cancel
}

// Current implements [connection].
func (*whole) Current() link.Session { return nil }

// withHint appends hint, a result of [targets.Hint], to the message of err if err is Unavailable.
func withHint(err error, hint string) error {
	if s, ok := err.(interface{ GRPCStatus() *status.Status }); ok && hint != "" && s.GRPCStatus().Code() == codes.Unavailable {
		p := s.GRPCStatus().Proto()
		p.Message += hint
		return status.FromProto(p).Err()
	}
	return err
}

// named returns an error of grpc.NewClient that names options as nearcall's.
func named(err error) error {
	if text := err.Error(); strings.Contains(text, "grpc.With") {
		return errors.New(strings.ReplaceAll(text, "grpc.With", "nearcall.With"))
	}
	return err
}
