package interop

import (
	"context"
	"net"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/authz"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
)

// policies are policies for package authz, which takes a call's connection from its
// context.
var policies = map[string]string{
	"all":                     `{"name": "p", "allow_rules": [{"name": "all"}]}`,
	"one method":              `{"name": "p", "allow_rules": [{"name": "a", "request": {"paths": ["/grpc.testing.TestService/UnaryCall"]}}]}`,
	"all but a header":        `{"name": "p", "deny_rules": [{"name": "d", "request": {"headers": [{"key": "k", "values": ["bad"]}]}}], "allow_rules": [{"name": "all"}]}`,
	"anybody with a name":     `{"name": "p", "allow_rules": [{"name": "a", "source": {"principals": ["*"]}}]}`,
	"all but those with one":  `{"name": "p", "deny_rules": [{"name": "d", "source": {"principals": ["*"]}}], "allow_rules": [{"name": "all"}]}`,
	"one name, another's too": `{"name": "p", "allow_rules": [{"name": "a", "source": {"principals": ["spiffe://x", "*.example"]}}]}`,
}

// authzCases belong to item 42.
var authzCases = []Case{
	{42, "package authz allows and denies", func(c *C) {
		for _, name := range []string{"all", "one method", "all but a header", "anybody with a name", "all but those with one", "one name, another's too"} {
			c.Note("--- %s", name)
			p, err := authz.NewStatic(policies[name])
			if err != nil {
				c.Err("policy", err)
				continue
			}
			conn := c.Start(Config{
				Addressed:    true,
				UnaryServer:  []grpc.UnaryServerInterceptor{p.UnaryInterceptor},
				StreamServer: []grpc.StreamServerInterceptor{p.StreamInterceptor},
				Service:      echoService(),
			})
			for _, v := range []string{"good", "bad"} {
				ctx := metadata.AppendToOutgoingContext(c.Context(), "k", v)
				_, err = conn.UnaryCall(ctx, request("x"))
				c.Err("unary", err)
				s, err := conn.FullDuplexCall(ctx)
				c.Err("start", err)
				s.Send(in("x"))
				_, err = s.Recv()
				c.Err("stream", err)
			}
		}
	}},
	{42, "the connection that package authz finds", func(c *C) {
		p, err := authz.NewStatic(policies["all"])
		c.Err("policy", err)
		h := c.Named("handler")
		conn := c.Start(Config{Addressed: true, Service: &Service{Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
			asked := &questions{Context: ctx}
			p.UnaryInterceptor(asked, m, nil, func(context.Context, any) (any, error) { return nil, nil })
			h.Note("%d connections", len(asked.conns))
			for _, conn := range asked.conns {
				for _, a := range []net.Addr{conn.LocalAddr(), conn.RemoteAddr()} {
					_, port, err := net.SplitHostPort(a.String())
					_, portErr := strconv.ParseUint(port, 10, 16)
					h.Note("an address with a port: %v %v", err, portErr)
				}
			}
			return echo(ctx, m)
		}}})
		_, err = conn.UnaryCall(c.Context(), request("x"))
		c.Err("unary", err)
	}},
}

// questions is a context that records the connections it was asked about.
type questions struct {
	context.Context
	conns []net.Conn
}

func (q *questions) Value(key any) any {
	v := q.Context.Value(key)
	if conn, ok := v.(net.Conn); ok {
		q.conns = append(q.conns, conn)
	}
	return v
}
