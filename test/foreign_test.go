package test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
)

// A caller sees of an answer that is not gRPC's what it sees with grpc-go.
func TestAnswersThatAreNotOfGRPC(t *testing.T) {
	lis := listenTCP(t)
	srv := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte("<html>"))
	})}
	srv.Protocols.SetUnencryptedHTTP2(true)
	go func() { _ = srv.Serve(lis) }()
	t.Cleanup(func() { _ = srv.Close() })
	seen := func(conn grpc.ClientConnInterface) string {
		client := testpb.NewTestServiceClient(conn)
		var header, trailer metadata.MD
		_, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{}, grpc.Header(&header), grpc.Trailer(&trailer))
		seen := fmt.Sprintf("unary: %v, %v, %v\n", err, header, trailer)
		stream, err := client.FullDuplexCall(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = stream.Recv()
		header, _ = stream.Header()
		return seen + fmt.Sprintf("stream: %v, %v, %v", err, header, stream.Trailer())
	}
	target := "passthrough:///" + lis.Addr().String()
	oracle, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecureCreds()))
	if err != nil {
		t.Fatal(err)
	}
	defer oracle.Close()
	conn, err := nearcall.NewClient(target, nearcall.WithTransportCredentials(insecureCreds()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got, want := seen(conn), seen(oracle); got != want || !strings.Contains(want, "503") {
		t.Errorf("the caller sees\n%s\nand with grpc-go\n%s", got, want)
	}
}

// A target that looks misspelt brings a hint only into errors that are not a server's.
func TestErrorsOfServersHaveNoHint(t *testing.T) {
	srv := serve(t, echo{unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		return nil, status.Error(codes.Unavailable, "overloaded")
	}})
	lis := listenTCP(t)
	start(t, srv, lis)
	plain := nearcall.WithTransportCredentials(insecureCreds())
	r := manual.NewBuilderWithScheme("mem")
	r.InitialState(resolver.State{Addresses: []resolver.Address{{Addr: lis.Addr().String()}}})
	dialer := nearcall.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", lis.Addr().String())
	})
	for target, opts := range map[string][]nearcall.DialOption{
		"mem:///orders": {plain, nearcall.WithResolvers(r)},
		"grpc:mem:///x": {plain, nearcall.WithResolvers(r)},
		// grpc-go knows no resolver for the scheme, and takes the whole target for an address.
		"uds:127.0.0.1":      {plain, nearcall.WithResolvers(asAddress{}), dialer},
		"grpc:uds:127.0.0.1": {plain, nearcall.WithResolvers(asAddress{}), dialer},
	} {
		err := <-invoke(t.Context(), dial(t, target, opts...))
		if s := status.Convert(err); s.Code() != codes.Unavailable || s.Message() != "overloaded" {
			t.Errorf("%s: %v", target, err)
		}
	}
	for _, target := range []string{"uds:127.0.0.1", "grpc:uds:127.0.0.1"} {
		_, err := dial(t, target, plain, nearcall.WithResolvers(asAddress{}), nearcall.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			return nil, net.ErrClosed
		})).UnaryCall(t.Context(), &testpb.SimpleRequest{})
		if !strings.Contains(fmt.Sprint(err), `did you mean "unix:127.0.0.1"?`) {
			t.Errorf("%s, which nobody reaches: %v", target, err)
		}
	}
}

// asAddress replaces grpc-go's default resolver.
type asAddress struct{}

func (asAddress) Scheme() string { return "dns" }

func (asAddress) Build(_ resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	return asAddress{}, cc.UpdateState(resolver.State{Addresses: []resolver.Address{{Addr: "any"}}})
}

func (asAddress) ResolveNow(resolver.ResolveNowOptions) {}
func (asAddress) Close()                                {}

// Errors of NewClient name options as the program must write them.
func TestErrorsNameNearcallsOptions(t *testing.T) {
	for _, target := range []string{"dns:///orders:1", "orders:1", "grpc:orders:1", "tcp:orders:1"} {
		_, err := nearcall.NewClient(target)
		if text := fmt.Sprint(err); !strings.Contains(text, "nearcall.WithTransportCredentials") || strings.Contains(text, "grpc.With") {
			t.Errorf("%s: %v", target, err)
		}
	}
}
