package client

import (
	"context"
	"fmt"
	"maps"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/testing/callservice"
)

// A card is credentials that return what the test sets and record the requests.
type card struct {
	data   map[string]string
	err    error
	secure bool

	audiences *[]string
	info      *credentials.RequestInfo
}

func (c card) GetRequestMetadata(ctx context.Context, uri ...string) (map[string]string, error) {
	if c.audiences != nil {
		*c.audiences = append(*c.audiences, uri...)
	}
	if c.info != nil {
		*c.info, _ = credentials.RequestInfoFromContext(ctx)
	}
	return maps.Clone(c.data), c.err
}

func (c card) RequireTransportSecurity() bool { return c.secure }

type authInfo struct{ credentials.CommonAuthInfo }

func (authInfo) AuthType() string { return "test" }

func TestTheAudienceOfCredentials(t *testing.T) {
	for _, c := range []struct{ authority, method, want string }{
		{"host", "/s/m", "https://host/s"},
		{"host:443", "/s/m", "https://host/s"},
		{"host:4430", "/s/m", "https://host:4430/s"},
		{"host:443:443", "/s/m", "https://host:443/s"},
		{"[::1]:443", "/s/m", "https://[::1]/s"},
		{"host:80", "/p.s/m", "https://host:80/p.s"},
		{"", "/s/m", "https:///s"},
		{":443", "/s/m", "https:///s"},
		{"host", "/a/b/m", "https://host/a/b"},
		{"host", "/", "https://host"},
		{"host", "/m", "https://host"},
		{"host", "", "https://host"},
		{"host", "//", "https://host/"},
		{"host", "s/m", "https://hosts"}, // as in grpc-go
	} {
		if got := audience(c.authority, c.method); got != c.want {
			t.Errorf("%q, %q: %q, want %q", c.authority, c.method, got, c.want)
		}
	}
}

// A call of a malformed method fails with Unimplemented and does not panic.
func TestCredentialsForAMethodWithoutASlash(t *testing.T) {
	var audiences []string
	b := start(t, handlers{}, nil, func(c *clientSetup) { c.PerRPC = []credentials.PerRPCCredentials{card{audiences: &audiences}} })
	for _, method := range []string{"", "m", "/", "/m", "//", "a/b"} {
		callservice.WantCode(t, b.Invoke(t.Context(), method, new(msg), new(msg)), codes.Unimplemented)
	}
	if len(audiences) == 0 {
		t.Error("the credentials were not asked")
	}
}

func TestControlPlane(t *testing.T) {
	applications := map[codes.Code]bool{
		codes.OK: true, codes.InvalidArgument: true, codes.NotFound: true, codes.AlreadyExists: true,
		codes.FailedPrecondition: true, codes.Aborted: true, codes.OutOfRange: true, codes.DataLoss: true,
	}
	for code := range codes.Code(20) {
		if got := IsControlPlaneOnly(code); got != applications[code] {
			t.Errorf("%v: %v", code, got)
		}
	}
}

func wantCodeOf(t *testing.T, name string, b *bed, want codes.Code, opts ...grpc.CallOption) {
	t.Helper()
	if _, err := b.call(t.Context(), opts...); status.Code(err) != want {
		t.Errorf("%s: unary: %v, want %v", name, err, want)
	}
	s, err := b.NewStream(t.Context(), streamDesc, streamMethod, opts...)
	if err == nil {
		_ = s.CloseSend()
		for err == nil {
			err = s.RecvMsg(new(msg))
		}
		if err.Error() == "EOF" {
			err = nil
		}
	}
	if status.Code(err) != want {
		t.Errorf("%s: stream: %v, want %v", name, err, want)
	}
}

// public is a session whose peer has no transport security.
type public struct{ link.Session }

func (p public) Peer() *link.Peer {
	peer := *p.Session.Peer()
	peer.AuthInfo = authInfo{credentials.CommonAuthInfo{SecurityLevel: credentials.NoSecurity}}
	return &peer
}

func TestCredentialsThatDemandPrivacyAreNotSentWithoutIt(t *testing.T) {
	var audiences []string
	b := start(t, handlers{}, nil, func(c *clientSetup) {
		c.Sessions = callservice.Always{Session: public{c.Sessions.(callservice.Always).Session}}
	})
	wantCodeOf(t, "secure", b, codes.Unauthenticated, grpc.PerRPCCredentials(card{secure: true, audiences: &audiences}))
	wantCodeOf(t, "insecure", b, codes.OK, grpc.PerRPCCredentials(card{}))
	if len(audiences) != 0 {
		t.Error("the credentials were asked though they cannot be sent")
	}
}

// receivedWith makes a call and returns the metadata that its handler sees.
func receivedWith(t *testing.T, conn []credentials.PerRPCCredentials, ctx context.Context, opts ...grpc.CallOption) metadata.MD {
	t.Helper()
	var md metadata.MD
	b := start(t, handlers{Unary: func(ctx context.Context, in *msg) (*msg, error) {
		md, _ = metadata.FromIncomingContext(ctx)
		return in, nil
	}}, nil, func(c *clientSetup) { c.PerRPC = conn })
	_, err := b.call(ctx, opts...)
	callservice.WantCode(t, err, codes.OK)
	return md
}

// In grpc-go all credentials of a connection write to one map.
func TestOfTwoCredentialsOfAConnectionTheLastSetsAKey(t *testing.T) {
	md := receivedWith(t, []credentials.PerRPCCredentials{
		card{data: map[string]string{"k": "first", "a": "1"}}, card{data: map[string]string{"k": "last"}},
	}, t.Context())
	if got := fmt.Sprintf("%q %q", md["k"], md["a"]); got != `["last"] ["1"]` {
		t.Errorf("the handler sees %s", got)
	}
}
