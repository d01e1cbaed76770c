package balance_test

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/attributes"
	"google.golang.org/grpc/balancer/roundrobin"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/experimental"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/serviceconfig"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/grpcinside"
)

// lookingUp is a service whose handlers look up what grpc-go's packages find in their contexts. They
// send the user agent back.
type lookingUp struct {
	testpb.UnimplementedTestServiceServer
}

func lookUp(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	p, ok := peer.FromContext(ctx)
	method, _ := grpc.Method(ctx)
	if !ok || p.Addr == nil || len(md["key"]) != 1 || method == "" {
		return status.Errorf(codes.FailedPrecondition, "the context has %v, %v, %q", p, md, method)
	}
	return grpc.SetHeader(ctx, metadata.Pairs("agent", md["user-agent"][0]))
}

func (lookingUp) EmptyCall(ctx context.Context, _ *testpb.Empty) (*testpb.Empty, error) {
	return &testpb.Empty{}, lookUp(ctx)
}

func (lookingUp) FullDuplexCall(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	if err := lookUp(s.Context()); err != nil {
		return err
	}
	for {
		m, err := s.Recv()
		if err != nil {
			return nil
		}
		if err := s.Send(&testpb.StreamingOutputCallResponse{Payload: m.Payload}); err != nil {
			return err
		}
	}
}

// callAll makes calls over conn in several ways, and returns the user agent that their handlers see.
func callAll(t *testing.T, conn grpc.ClientConnInterface) (agent string) {
	t.Helper()
	client := testpb.NewTestServiceClient(conn)
	ctx := metadata.AppendToOutgoingContext(soon(t), "key", "value")
	for name, opts := range map[string][]grpc.CallOption{
		"unary": nil, "waits": {grpc.WaitForReady(true)}, "compressed": {grpc.UseCompressor(gzip.Name)},
		"accepts": {experimental.AcceptCompressors(gzip.Name)},
	} {
		var header metadata.MD
		if _, err := client.EmptyCall(ctx, &testpb.Empty{}, append(opts, grpc.Header(&header))...); err != nil {
			t.Errorf("%s: %v", name, err)
		} else if agent = header["agent"][0]; header["agent"] == nil {
			t.Errorf("%s: no header", name)
		}
		s, err := client.FullDuplexCall(ctx, opts...)
		if err == nil {
			err = s.Send(&testpb.StreamingOutputCallRequest{Payload: &testpb.Payload{Body: []byte("body")}})
		}
		var m *testpb.StreamingOutputCallResponse
		if err == nil {
			m, err = s.Recv()
		}
		if err != nil || string(m.Payload.Body) != "body" {
			t.Errorf("stream, %s: %v, %v", name, m, err)
			continue
		}
		if _, err = s.Header(); err == nil {
			err = s.CloseSend()
		}
		if _, end := s.Recv(); err != nil || end != io.EOF {
			t.Errorf("the end of a stream, %s: %v, %v", name, err, end)
		}
	}
	return agent
}

// parsedElsewhere returns a service config that another connection has parsed.
func parsedElsewhere(t *testing.T, config string) *serviceconfig.ParseResult {
	r := manual.NewBuilderWithScheme("other")
	parsed := make(chan *serviceconfig.ParseResult, 1)
	r.BuildCallback = func(_ resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) {
		parsed <- cc.ParseServiceConfig(config)
	}
	conn, err := grpc.NewClient("other:///any", grpc.WithResolvers(r), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.Connect()
	return <-parsed
}

// dialParts returns connections to one server that need all parts between them.
func dialParts(t *testing.T, target string) map[string]grpc.ClientConnInterface {
	t.Helper()
	direct, err := nearcall.NewClient(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = direct.Close() })
	library, err := grpc.NewClient("passthrough:///any", direct.DialOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = library.Close() })
	resolved := func(s resolver.State, opts ...nearcall.DialOption) *nearcall.ClientConn {
		s.Addresses = []resolver.Address{{Addr: target}}
		r := manual.NewBuilderWithScheme("part")
		r.InitialState(s)
		conn, err := nearcall.NewClient("part:///any", append(opts, nearcall.WithResolvers(r), nearcall.WithTransportCredentials(insecure.NewCredentials()))...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	plain := resolved(resolver.State{}, nearcall.WithDefaultServiceConfig(policyConfig(roundrobin.Name)))
	return map[string]grpc.ClientConnInterface{
		"direct": direct, "GRPC": direct.GRPC(), "a library's": library,
		"resolved": plain, "GRPC of resolved": plain.GRPC(),
		"with attributes":     resolved(resolver.State{Attributes: attributes.New("key", "value")}),
		"configured":          resolved(resolver.State{ServiceConfig: parsedElsewhere(t, policyConfig(roundrobin.Name))}),
		"configured, retries": resolved(resolver.State{ServiceConfig: parsedElsewhere(t, retries)}),
	}
}

// serveParts serves with nearcall, and returns targets.
func serveParts(t *testing.T) []string {
	passes := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		return handle(ctx, req)
	}
	srv := nearcall.NewServer(nearcall.GRPCServerOptions(grpc.UnaryInterceptor(passes)))
	testpb.RegisterTestServiceServer(srv, lookingUp{})
	t.Cleanup(srv.Stop)
	lis, err := nearcall.Listen("inproc:" + t.Name())
	if err != nil {
		t.Fatal(err)
	}
	go srv.Serve(lis)
	over := listen(t)
	go srv.Serve(over)
	return []string{"inproc:" + t.Name(), "tcp:" + over.Addr().String()}
}

// wholeWithout has the connections whose calls grpc-go makes as a whole without a part.
var wholeWithout = map[string][]string{
	"ConfigSelector": {"with attributes"},
	"ConfigText":     {"configured", "configured, retries"},
	"Policies":       {"resolved", "GRPC of resolved", "with attributes", "configured", "configured, retries"},
	"Marks":          {"resolved", "GRPC of resolved", "with attributes", "configured", "configured, retries"},
}

// Whatever grpc-go changes inside, calls go on: the package comment of grpcinside says how.
func TestCallsGoOnWithoutAPart(t *testing.T) {
	for name, part := range grpcinside.Parts {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(part.Hide()) // before the servers and connections below are closed it must not be shown
			for _, target := range serveParts(t) {
				for kind, conn := range dialParts(t, target) {
					t.Run(kind, func(t *testing.T) {
						agent := callAll(t, conn)
						if whole := slices.Contains(wholeWithout[name], kind); strings.Contains(agent, "grpc-go") != whole {
							t.Errorf("the calls are made by %s", agent)
						}
					})
				}
			}
		})
	}
}

// With all parts, no call goes to grpc-go as a whole.
func TestPoliciesAreWrapped(t *testing.T) {
	for _, target := range serveParts(t) {
		for name, conn := range dialParts(t, target) {
			if agent := callAll(t, conn); strings.Contains(agent, "grpc-go") {
				t.Errorf("%s to %s: grpc-go makes the calls, as %s", name, target, agent)
			}
		}
	}
}
