package nearcall_test

import (
	"context"
	"io"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
)

// overGRPC returns a client of e by grpc-go over TLS.
func overGRPC(t *testing.T, e echo, certs certificates) testpb.TestServiceClient {
	t.Helper()
	lis := listenTCP(t)
	srv := grpc.NewServer(grpc.Creds(credentials.NewTLS(certs.server(nil))))
	testpb.RegisterTestServiceServer(srv, e)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(certs.client(nil))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		srv.Stop()
		<-served
	})
	return testpb.NewTestServiceClient(conn)
}

// asked is credentials that count how often they were asked.
type asked struct {
	token
	n *int
}

func (a asked) GetRequestMetadata(ctx context.Context, uri ...string) (map[string]string, error) {
	*a.n++
	return a.token.GetRequestMetadata(ctx, uri...)
}

func TestAnAuthorityOfACallIsHeldToTheCertificate(t *testing.T) {
	certs := newCertificates(t)
	var p peer.Peer
	var md metadata.MD
	lis := listen(t, "tcp:127.0.0.1:0")
	start(t, serve(t, seen(&p, &md), nearcall.Creds(credentials.NewTLS(certs.server(nil)))), lis)
	near := dial(t, lis.Target(), nearcall.WithTransportCredentials(credentials.NewTLS(certs.client(nil))))
	oracle := overGRPC(t, seen(&p, &md), certs)

	type result struct {
		unary, stream *status.Status
		authority     string
		asked         int
	}
	call := func(client testpb.TestServiceClient, authority string) (r result) {
		md = nil
		opts := []grpc.CallOption{grpc.CallAuthority(authority), grpc.PerRPCCredentials(asked{n: &r.asked}), grpc.WaitForReady(true)}
		_, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{}, opts...)
		r.unary = status.Convert(err)
		r.authority = ""
		if a := md[":authority"]; len(a) > 0 {
			r.authority = a[0]
		}
		s, err := client.FullDuplexCall(t.Context(), opts...)
		if err == nil {
			_ = s.CloseSend()
			if _, err = s.Recv(); err == io.EOF {
				err = nil
			}
		}
		r.stream = status.Convert(err)
		return r
	}
	for authority, want := range map[string]codes.Code{
		"localhost":         codes.OK,
		"LOCALHOST:1":       codes.OK,
		"127.0.0.1":         codes.OK,
		"127.0.0.1:80":      codes.OK,
		"elsewhere.example": codes.Unavailable,
		"localhost.":        codes.OK,
		"10.0.0.1":          codes.Unavailable,
		"a.localhost:443":   codes.Unavailable,
		":443":              codes.Unavailable,
	} {
		got, grpcs := call(near, authority), call(oracle, authority)
		if got.unary.String() != grpcs.unary.String() || got.stream.String() != grpcs.stream.String() || got.authority != grpcs.authority || got.asked != grpcs.asked {
			t.Errorf("%q: %v,\ngrpc-go has %v", authority, got, grpcs)
		}
		if got.unary.Code() != want || got.stream.Code() != want {
			t.Errorf("%q: %v, want %v", authority, got, want)
		}
	}
	if r := call(near, ""); r.unary.Code() != codes.OK {
		t.Errorf("without an authority of its own: %v", r)
	}
}

// What a server says as it stops is the text of the caller's status, wherever the
// caller is: not another status within it.
func TestACallThatAStopEndsHasOneStatus(t *testing.T) {
	e, running, release := waiting()
	defer close(release)
	srv := serve(t, e)
	near, _ := connect(t, srv)
	calls := map[string]<-chan error{"the server was stopped": invoke(t.Context(), near)}
	for _, network := range available(t, networks("unix")...) {
		target := targetFor(t, network)
		start(t, srv, listen(t, target))
		calls[target+": the server was stopped"] = invoke(t.Context(), dial(t, target, over(network)...))
	}
	for range calls {
		<-running
	}
	srv.Stop()
	for want, call := range calls {
		if st := status.Convert(<-call); st.Code() != codes.Unavailable || st.Message() != want {
			t.Errorf("got %v, want %q", st, want)
		}
	}
}

func TestAnyAuthorityOfACallIsTakenWithoutACertificate(t *testing.T) {
	var p peer.Peer
	var md metadata.MD
	srv := serve(t, seen(&p, &md))
	tcp := listen(t, "tcp:127.0.0.1:0")
	start(t, srv, tcp)
	inproc, _ := connect(t, srv)
	clients := map[string]testpb.TestServiceClient{
		"in process": inproc,
		"tcp":        dial(t, tcp.Target()),
	}
	for _, network := range available(t, networks("unix")...) {
		target := targetFor(t, network)
		start(t, srv, listen(t, target))
		clients[network] = dial(t, target, over(network)...)
		if network == "unix" { // of which nobody is told a process
			clients["unix, with a dialer"] = dial(t, target, nearcall.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				c, err := new(net.Dialer).DialContext(ctx, "unix", target[len("unix:"):])
				return struct{ net.Conn }{c}, err
			}))
		}
	}
	for name, client := range clients {
		wantCode(t, <-invoke(t.Context(), client, grpc.CallAuthority("elsewhere.example")), codes.OK)
		if a := md[":authority"]; len(a) != 1 || a[0] != "elsewhere.example" {
			t.Errorf("%s: the handler sees %q", name, a)
		}
	}
}

// A name may be anything, and what handlers find of it is escaped.
func TestTheAuthorityOfANameHasNoControlCharacters(t *testing.T) {
	var p peer.Peer
	var md metadata.MD
	lis := listen(t, "inproc:the authority\n of "+t.Name())
	start(t, serve(t, seen(&p, &md)), lis)
	if _, err := dial(t, lis.Target()).UnaryCall(t.Context(), &testpb.SimpleRequest{}); err != nil {
		t.Fatal(err)
	}
	if got, want := md[":authority"], "the%20authority%0A%20of%20"+t.Name(); len(got) != 1 || got[0] != want {
		t.Errorf("%q, want %q", got, want)
	}
}
