package promises

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/authz"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/nearcall/nearcall"
)

// peerAndAuthz: a handler knows the address of its client and how the connection is secured, and
// package authz decides by what is called and by the client's certificate.
func peerAndAuthz(t *testing.T, f *face) {
	const policy = `{"name": "p", "deny_rules": [{"name": "d", "request": {"headers": [{"key": "k", "values": ["bad"]}]}}],
		"allow_rules": [{"name": "a", "request": {"paths": ["/grpc.testing.TestService/UnaryCall"]}}]}`
	rules, err := authz.NewStatic(policy)
	if err != nil {
		t.Fatal(err)
	}
	var seen []*peer.Peer
	s := &service{
		unary: func(ctx context.Context, _ *pb.SimpleRequest) (*pb.SimpleResponse, error) {
			p, _ := peer.FromContext(ctx)
			seen = append(seen, p)
			return &pb.SimpleResponse{}, nil
		},
		upload: func(grpc.ServerStream) error {
			t.Error("a handler runs that the policy does not allow")
			return nil
		},
	}
	c, _ := f.start(t, s, nearcall.ChainUnaryInterceptor(rules.UnaryInterceptor), nearcall.ChainStreamInterceptor(rules.StreamInterceptor)).client()
	_, err = c.unary(metadata.AppendToOutgoingContext(t.Context(), "k", "good"), new(pb.SimpleRequest))
	wantCode(t, "an allowed call", err, codes.OK)
	_, err = c.unary(metadata.AppendToOutgoingContext(t.Context(), "k", "bad"), new(pb.SimpleRequest))
	wantCode(t, "a header that is denied", err, codes.PermissionDenied)
	wantCode(t, "a method that is not allowed", c.upload(t.Context())(), codes.PermissionDenied)
	if len(seen) != 1 || seen[0] == nil {
		t.Fatalf("the handler has seen %v", seen)
	}
	p := seen[0]
	if p.Addr == nil || p.LocalAddr == nil || p.Addr.Network() != f.network {
		t.Errorf("the peer is %v at %v, want the network %s", p.Addr, p.LocalAddr, f.network)
	}
	if p.AuthInfo == nil || p.AuthInfo.AuthType() != f.auth {
		t.Errorf("the connection is secured by %v, want %s", p.AuthInfo, f.auth)
	}
	if private := credentials.CheckSecurityLevel(p.AuthInfo, credentials.PrivacyAndIntegrity) == nil; private != (f.auth != "insecure") {
		t.Errorf("the connection is private: %t", private)
	}
	if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && (len(info.State.PeerCertificates) != 1 || info.State.PeerCertificates[0].Subject.CommonName != "alice") {
		t.Errorf("the client's certificates are %v", info.State.PeerCertificates)
	}
	if f.travels != "" {
		travels(t, f)
	}
}

// travels checks that a client finds its face's nearer path. A busy machine may be too slow for that,
// and then the client stays on TCP.
func travels(t *testing.T, f *face) {
	for range 5 {
		w := f.start(t, new(service))
		c, _ := w.client()
		if _, err := c.unary(t.Context(), new(pb.SimpleRequest)); err != nil {
			t.Error(err)
		}
		if len(logs.with("calls to the server at "+w.addr.String()+" travel by "+f.travels)) == 1 {
			return
		}
	}
	t.Errorf("calls do not travel by %s", f.travels)
}
