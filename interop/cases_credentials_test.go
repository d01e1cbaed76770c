package interop

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// token is a PerRPCCredentials.
type token struct {
	secure bool
	get    func(ctx context.Context, uri ...string) (map[string]string, error)
}

func (t token) RequireTransportSecurity() bool { return t.secure }
func (t token) GetRequestMetadata(ctx context.Context, uri ...string) (map[string]string, error) {
	return t.get(ctx, uri...)
}

func fixed(kv ...string) token {
	md := map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		md[kv[i]] = kv[i+1]
	}
	return token{get: func(context.Context, ...string) (map[string]string, error) { return md, nil }}
}

// credentialCases are item 7. They use a connection that counts as private, as nearcall's
// local paths do. On grpc-go that is a unix socket with local credentials.
var credentialCases = []Case{
	{7, "audience and RequestInfo", func(c *C) {
		type key struct{}
		look := func(label string) token {
			a := c.Named(label)
			return token{get: func(ctx context.Context, uri ...string) (map[string]string, error) {
				a.Note("uri %q", uri)
				ri, ok := credentials.RequestInfoFromContext(ctx)
				a.Note("RequestInfo %v method %q auth info %v", ok, ri.Method, ri.AuthInfo != nil)
				a.Note("privacy and integrity: %v", credentials.CheckSecurityLevel(ri.AuthInfo, credentials.PrivacyAndIntegrity))
				a.Note("value %v", ctx.Value(key{}))
				return map[string]string{label: "1"}, nil
			}}
		}
		conn := c.Start(Config{Private: true, Authority: "auth.example", PerRPC: []credentials.PerRPCCredentials{look("dial")},
			Service: &Service{Unary: noteMD(c), Duplex: noteMDStream(c)}})
		ctx := context.WithValue(c.Context(), key{}, "v")
		_, err := conn.UnaryCall(ctx, request("x"), grpc.PerRPCCredentials(look("call")))
		c.Err("unary", err)
		s, err := conn.FullDuplexCall(ctx, grpc.PerRPCCredentials(look("call")))
		c.Err("stream", err)
		_, err = s.Recv()
		c.Err("recv", err)
		c.Err("name with more slashes", conn.Invoke(ctx, "/a/b/c", request("x"), &pb.Empty{}))
	}},
	{7, "audience with the default authority", func(c *C) {
		t := token{get: func(ctx context.Context, uri ...string) (map[string]string, error) {
			c.Note("%d audiences; https %v; service %v", len(uri), strings.HasPrefix(uri[0], "https://"), strings.HasSuffix(uri[0], "/grpc.testing.TestService"))
			return nil, nil
		}}
		conn := c.Start(Config{Private: true, Service: &Service{Unary: noteMD(c)}})
		_, err := conn.UnaryCall(c.Context(), request("x"), grpc.PerRPCCredentials(t))
		c.Err("unary", err)
	}},
	{7, "audience without the port of https", func(c *C) {
		h := c.Named("handler")
		authority := func(ctx context.Context) {
			md, _ := metadata.FromIncomingContext(ctx)
			h.Note(":authority %q", md[":authority"])
		}
		look := func(label string) token {
			return token{get: func(_ context.Context, uri ...string) (map[string]string, error) {
				c.Note("%s credentials: uri %q", label, uri)
				return nil, nil
			}}
		}
		for _, a := range []string{"auth.example:443", "auth.example:4430", "auth.example:80", "auth.example:443:443", "[::1]:443"} {
			c.Note("--- %s", a)
			conn := c.Start(Config{Private: true, Authority: a, PerRPC: []credentials.PerRPCCredentials{look("dial")}, Service: &Service{
				Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
					authority(ctx)
					return echo(ctx, m)
				},
				Duplex: func(s duplexServer) error { authority(s.Context()); return nil },
			}})
			_, err := conn.UnaryCall(c.Context(), request("x"), grpc.PerRPCCredentials(look("call")))
			c.Err("unary", err)
			s, err := conn.FullDuplexCall(c.Context(), grpc.PerRPCCredentials(look("call")))
			c.Err("stream", err)
			_, err = s.Recv()
			c.Err("recv", err)
		}
	}},
	{7, "audience of a call with an authority of its own", func(c *C) {
		look := func(label string) token {
			return token{get: func(_ context.Context, uri ...string) (map[string]string, error) {
				c.Note("%s credentials: uri %q", label, uri)
				return nil, nil
			}}
		}
		conn := c.Start(Config{Private: true, Authority: "dial.example:443", PerRPC: []credentials.PerRPCCredentials{look("dial")},
			Service: &Service{Unary: noteMD(c), Duplex: func(duplexServer) error { return nil }}})
		for _, a := range []string{"call.example", "call.example:443", ""} {
			opts := []grpc.CallOption{grpc.PerRPCCredentials(look("call")), grpc.CallAuthority(a)}
			_, err := conn.UnaryCall(c.Context(), request("x"), opts...)
			c.Err("unary", err)
			s, err := conn.FullDuplexCall(c.Context(), opts...)
			c.Err("stream", err)
			_, err = s.Recv()
			c.Err("recv", err)
		}
	}},
	{7, "credentials that require transport security, on a private connection", func(c *C) {
		t := fixed("authorization", "secret")
		t.secure = true
		conn, err := c.TryStart(Config{Private: true, PerRPC: []credentials.PerRPCCredentials{t}, Service: &Service{Unary: noteMD(c)}})
		c.Note("refused: %v", err != nil)
		if err != nil {
			return
		}
		_, err = conn.UnaryCall(c.Context(), request("x"), grpc.PerRPCCredentials(t))
		c.Err("unary", err)
		var p peer.Peer
		_, err = conn.UnaryCall(c.Context(), request("x"), grpc.Peer(&p))
		c.Err("with peer", err)
		c.Note("auth info %v, private: %v", p.AuthInfo != nil, credentials.CheckSecurityLevel(p.AuthInfo, credentials.PrivacyAndIntegrity))
	}},
	{7, "what is sent: lower case, both sets, beside the metadata", func(c *C) {
		conn := c.Start(Config{Private: true, PerRPC: []credentials.PerRPCCredentials{fixed("Authorization", "dial"), fixed("second", "dial")},
			Service: &Service{Unary: noteMD(c)}})
		ctx := metadata.AppendToOutgoingContext(c.Context(), "authorization", "metadata", "k", "v")
		_, err := conn.UnaryCall(ctx, request("x"), grpc.PerRPCCredentials(fixed("AUTHORIZATION", "call", "x-bin", "\x00\xff")))
		c.Err("unary", err)
		_, err = conn.UnaryCall(ctx, request("x"))
		c.Err("dial only", err)
	}},
	{7, "of two call options the last counts", func(c *C) {
		conn := c.Start(Config{Private: true, CallOptions: []grpc.CallOption{grpc.PerRPCCredentials(fixed("a", "default"))},
			Service: &Service{Unary: noteMD(c)}})
		_, err := conn.UnaryCall(c.Context(), request("x"))
		c.Err("default", err)
		_, err = conn.UnaryCall(c.Context(), request("x"), grpc.PerRPCCredentials(fixed("b", "1")), grpc.PerRPCCredentials(fixed("c", "2")))
		c.Err("two", err)
	}},
	{7, "illegal metadata from credentials", func(c *C) {
		for _, kv := range [][]string{{"bad key", "v"}, {"key", "\x01"}, {"", "v"}} {
			for _, dial := range []bool{true, false} {
				cfg := Config{Private: true, Service: &Service{Unary: noteMD(c)}}
				var opts []grpc.CallOption
				if dial {
					cfg.PerRPC = []credentials.PerRPCCredentials{fixed(kv...)}
				} else {
					opts = []grpc.CallOption{grpc.PerRPCCredentials(fixed(kv...))}
				}
				_, err := c.Start(cfg).UnaryCall(c.Context(), request("x"), opts...)
				c.Err(fmt.Sprintf("%q dial=%v", kv, dial), err)
			}
		}
	}},
	{7, "errors of GetRequestMetadata", func(c *C) {
		var fail error
		t := token{get: func(context.Context, ...string) (map[string]string, error) { return nil, fail }}
		dial := c.Start(Config{Private: true, PerRPC: []credentials.PerRPCCredentials{t}, Service: &Service{Unary: noteMD(c)}})
		call := c.Start(Config{Private: true, Service: &Service{Unary: noteMD(c)}})
		plain := errors.New("plain")
		fails := []error{plain, fmt.Errorf("wrapped: %w", status.Error(codes.PermissionDenied, "no")), context.Canceled, context.DeadlineExceeded}
		for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
			fails = append(fails, status.Error(code, "token"))
		}
		for _, fail = range fails {
			_, err := dial.UnaryCall(c.Context(), request("x"))
			c.Err("dial "+fail.Error(), err)
			c.Note("identity %v", errors.Is(err, plain))
			_, err = call.UnaryCall(c.Context(), request("x"), grpc.PerRPCCredentials(t))
			c.Err("call "+fail.Error(), err)
			_, err = call.FullDuplexCall(c.Context(), grpc.PerRPCCredentials(t))
			c.Err("stream "+fail.Error(), err)
		}
	}},
	{7, "not asked for a call that is done, asked for each other", func(c *C) {
		asked := 0
		t := token{get: func(context.Context, ...string) (map[string]string, error) { asked++; return nil, nil }}
		conn := c.Start(Config{Private: true, PerRPC: []credentials.PerRPCCredentials{t}, Service: &Service{Unary: noteMD(c)}})
		ctx, cancel := c.Cancellable()
		cancel()
		_, err := conn.UnaryCall(ctx, request("x"))
		c.Err("done", err)
		c.Note("asked %d", asked)
		for range 3 {
			_, err = conn.UnaryCall(c.Context(), request("x"))
			c.Err("unary", err)
		}
		c.Note("asked %d", asked)
		c.Err("too large", conn.Invoke(c.Context(), unaryCall, request("xxxxx"), &pb.Empty{}, grpc.MaxCallSendMsgSize(1)))
		c.Note("asked %d", asked)
	}},
}
