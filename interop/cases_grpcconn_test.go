package interop

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	pb "google.golang.org/grpc/interop/grpc_testing"
)

// shown stores the connection that interceptors get in cc, and notes its state around each
// call.
func shown(c *C, cc **grpc.ClientConn) Config {
	return Config{
		Service: echoService(),
		UnaryClient: []grpc.UnaryClientInterceptor{func(ctx context.Context, method string, req, reply any, seen *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			c.Note("shown the same: %v", *cc == nil || *cc == seen)
			*cc = seen
			c.Note("before %v", seen.GetState())
			err := next(ctx, method, req, reply, seen, opts...)
			for s := seen.GetState(); s == connectivity.Connecting; s = seen.GetState() { // in grpc-go the call can finish before the state changes
				seen.WaitForStateChange(ctx, s)
			}
			c.Note("after %v", seen.GetState())
			return err
		}},
		StreamClient: []grpc.StreamClientInterceptor{func(ctx context.Context, desc *grpc.StreamDesc, seen *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			c.Note("stream shown the same: %v, %v", *cc == seen, seen.GetState())
			return next(ctx, desc, seen, method, opts...)
		}},
		ServiceConfig: `{"methodConfig": [{"name": [{"service": "grpc.testing.TestService"}], "timeout": "7s", "waitForReady": true}]}`,
	}
}

// changes waits until cc leaves state from, and returns the next.
func changes(c *C, cc *grpc.ClientConn, from connectivity.State) connectivity.State {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c.Note("leaves %v: %v", from, cc.WaitForStateChange(ctx, from))
	return cc.GetState()
}

// grpcConnCases are about the *grpc.ClientConn that client interceptors get.
var grpcConnCases = []Case{
	{42, "a client interceptor's connection: state, config and calls", func(c *C) {
		var cc *grpc.ClientConn
		conn := c.Start(shown(c, &cc))
		_, err := conn.UnaryCall(c.Context(), request("x"))
		c.Err("unary", err)
		s, err := conn.FullDuplexCall(c.Context())
		c.Err("start", err)
		c.Err("close", s.CloseSend())
		_, err = s.Recv()
		c.Err("recv", err)
		c.Note("target %v, canonical %v", cc.Target() != "", cc.CanonicalTarget() != "")
		for _, method := range []string{unaryCall, "/grpc.testing.TestService/Other", "/other/Call"} {
			m := cc.GetMethodConfig(method)
			c.Note("%s: timeout %v, ready %v", method, m.Timeout != nil && *m.Timeout == 7*time.Second, m.WaitForReady != nil && *m.WaitForReady)
		}
		cc.Connect()
		cc.ResetConnectBackoff()
		c.Note("connected %v", cc.GetState())
		reply := new(pb.SimpleResponse)
		c.Err("its own call", cc.Invoke(c.Context(), unaryCall, request("y"), reply))
		c.Msg("reply", reply)
	}},
	{41, "a client interceptor's connection is closed", func(c *C) {
		var cc *grpc.ClientConn
		conn := c.Start(shown(c, &cc))
		_, err := conn.UnaryCall(c.Context(), request("x"))
		c.Err("unary", err)
		c.Err("close", cc.Close())
		c.Note("%v", cc.GetState())
		c.Err("closed again", cc.Close())
		c.Err("the connection's", conn.Close())
		_, err = conn.UnaryCall(c.Context(), request("x"))
		c.Err("unary", err)
		c.Err("its own call", cc.Invoke(c.Context(), unaryCall, request("y"), new(pb.SimpleResponse)))
	}},
	{41, "a client interceptor's connection, when the connection is closed", func(c *C) {
		var cc *grpc.ClientConn
		conn := c.Start(shown(c, &cc))
		_, err := conn.UnaryCall(c.Context(), request("x"))
		c.Err("unary", err)
		c.Err("close", conn.Close())
		c.Note("%v", cc.GetState())
		c.Err("its own call", cc.Invoke(c.Context(), unaryCall, request("y"), new(pb.SimpleResponse)))
		c.Err("its close", cc.Close())
	}},
	{41, "a client interceptor's connection, when the server is stopped", func(c *C) {
		var cc *grpc.ClientConn
		conn := c.Start(shown(c, &cc))
		_, err := conn.UnaryCall(c.Context(), request("x"))
		c.Err("unary", err)
		conn.Stop()
		c.Note("%v", changes(c, cc, connectivity.Ready))
	}},
}
