package server

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/nearcall/nearcall/internal/grpcinside"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/testing/callservice"
	"github.com/nearcall/nearcall/internal/transport/inproc"
)

// newServerCall returns a call without a session.
func newServerCall(o *link.CallHeader) *serverCall {
	if o.Profile == nil {
		o.Profile = new(link.Profile)
	}
	auth := credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}
	conn := &serverConn{
		server: New(limited(0), Config{}),
		peer:   &link.Peer{Addr: inproc.Addr("there"), LocalAddr: inproc.Addr("here"), AuthInfo: authInfo{auth}},
		ctx:    context.Background(),
	}
	conn.peerInfo = peer.Peer{Addr: conn.peer.Addr, LocalAddr: conn.peer.LocalAddr, AuthInfo: conn.peer.AuthInfo}
	c := new(serverCall)
	c.init(conn, &method{}, o)
	return c
}

type authInfo struct{ credentials.CommonAuthInfo }

func (authInfo) AuthType() string { return "test" }

func TestAHandlersContextHasWhatGRPCsPackagesLookUp(t *testing.T) {
	t.Run("under known keys", testHandlersContext)
	t.Run("under unknown keys", func(t *testing.T) {
		defer grpcinside.ContextKeys.Hide()()
		defer func(in, peer, stream any) {
			grpcinside.IncomingKey, grpcinside.PeerKey, grpcinside.StreamKey = in, peer, stream
		}(grpcinside.IncomingKey, grpcinside.PeerKey, grpcinside.StreamKey)
		grpcinside.IncomingKey, grpcinside.PeerKey, grpcinside.StreamKey = new(int), new(int), new(int)
		testHandlersContext(t)
	})
}

func testHandlersContext(t *testing.T) {
	c := newServerCall(&link.CallHeader{Method: "/s/m", Profile: &link.Profile{Authority: "a", UserAgent: "ua", ContentSubtype: "json"},
		Metadata: metadata.Pairs("k", "v", "k", "w", "host", "other", "te", "trailers", "content-type", "other", "grpc-timeout", "1S")})

	md, ok := metadata.FromIncomingContext(c)
	want := metadata.MD{"k": {"v", "w"}, ":authority": {"a"}, "user-agent": {"ua"}, "content-type": {"application/grpc+json"}}
	if !ok || callservice.Show(md) != callservice.Show(want) {
		t.Errorf("incoming metadata %s, %v; want %s", callservice.Show(md), ok, callservice.Show(want))
	}
	md["k"][0] = "changed"
	if got := metadata.ValueFromIncomingContext(c, "K"); fmt.Sprint(got) != "[v w]" {
		t.Errorf("the values of one key are %v: a handler's change of its metadata came back", got)
	}

	p, ok := peer.FromContext(c)
	if !ok || p.Addr.String() != "there" || p.LocalAddr.String() != "here" || p.AuthInfo.AuthType() != "test" {
		t.Errorf("peer %v, %v", p, ok)
	}

	s := grpc.ServerTransportStreamFromContext(c)
	if s != grpc.ServerTransportStream(c) || s.Method() != "/s/m" {
		t.Errorf("the server's stream is %v", s)
	}
	if m, ok := grpc.Method(c); !ok || m != "/s/m" {
		t.Errorf("grpc.Method returns %q, %v", m, ok)
	}

	if _, ok := metadata.FromOutgoingContext(c); ok {
		t.Error("a handler's context has outgoing metadata: what came in would go on with its calls")
	}
	if v := c.Value(struct{ k int }{1}); v != nil {
		t.Errorf("a key of nobody has the value %v", v)
	}
}

func TestHandlerContextHasConnectionTags(t *testing.T) {
	type key struct{}
	c := newServerCall(&link.CallHeader{Profile: &link.Profile{}})
	c.conn.ctx = context.WithValue(c.conn.ctx, key{}, "attached")
	if v := c.Value(key{}); v != "attached" {
		t.Errorf("got %v", v)
	}
}

// Printing a context with %v must not read its fields, which other goroutines write.
func TestAHandlersContextPrintsItsMethodAlone(t *testing.T) {
	c := newServerCall(&link.CallHeader{Method: "/s/m"})
	if s := fmt.Sprintf("%v", c); s != "nearcall.Context(/s/m)" {
		t.Errorf("printed as %s", s)
	}
}

func newOpen() *link.CallHeader {
	return &link.CallHeader{Method: unaryMethod, Profile: &link.Profile{Authority: "bed"}}
}
