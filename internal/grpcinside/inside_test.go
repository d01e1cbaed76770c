package grpcinside

import (
	"context"
	"net"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/serviceconfig"
)

// This test fails if a version of grpc-go has other insides. Until the package knows them, calls take a
// slower way: see the package comment.
func TestTheInsidesOfGRPC(t *testing.T) {
	if names := CompressorNames(); !slices.Contains(names, gzip.Name) || len(registered) == 0 {
		t.Errorf("the registered compressors are %q", registered)
	}
	if names, ok := AcceptedCompressors(experimental.AcceptCompressors("a", "b")); !ok || !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("AcceptCompressors has %q, %v", names, ok)
	}
	ctx := metadata.NewOutgoingContext(t.Context(), metadata.MD{"K": {"v"}})
	if md, added := Outgoing(metadata.AppendToOutgoingContext(ctx, "L", "w")); len(md["K"]) != 1 || len(added) != 1 {
		t.Errorf("outgoing metadata is %v, %v", md, added)
	}
	unary := func(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) { return nil, nil }
	stream := func(any, grpc.ServerStream, *grpc.StreamServerInfo, grpc.StreamHandler) error { return nil }
	if u, s := InterceptorsOf([]grpc.ServerOption{grpc.UnaryInterceptor(unary), grpc.StreamInterceptor(stream)}); len(u) != 1 || len(s) != 1 {
		t.Errorf("there are %d and %d interceptors", len(u), len(s))
	}
	if !IsProtoCodec(encoding.GetCodecV2(proto.Name)) {
		t.Error("the codec for protobuf is not known")
	}
	if RPCInfoKey == StreamKey {
		t.Errorf("grpc.PreparedMsg looks for %v", RPCInfoKey)
	}
	r := manual.NewBuilderWithScheme("parsing")
	parsed := make(chan *serviceconfig.ParseResult, 1)
	r.BuildCallback = func(_ resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) {
		parsed <- cc.ParseServiceConfig("{ }")
	}
	conn, err := grpc.NewClient("parsing:///any", insecurely, grpc.WithResolvers(r))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.Connect()
	if text, ok := TextOf((<-parsed).Config); !ok || text != "{ }" {
		t.Errorf("the text of a service config is %q, %v", text, ok)
	}
	for name, p := range Parts {
		if !p.Found() {
			t.Errorf("grpc-go has no %s, as this package knows it", name)
		}
	}
}

type selecting struct{}

func (selecting) SelectConfig(struct{ Method string }) (*struct{}, error) { return nil, nil }

// A config selector that only grpc-go can ask is not overlooked.
func TestAnUnknownSelectorIsFound(t *testing.T) {
	s := SelectorOf(resolver.State{Attributes: attributesWith(selecting{})})
	if s == nil || s.Known() {
		t.Errorf("another key and another shape: %v", s)
	}
	if s := SelectorOf(resolver.State{Attributes: attributesWith(nil)}); s != nil {
		t.Errorf("no value: %v", s)
	}
	defer ConfigSelector.Hide()()
	if s := SelectorOf(resolver.State{Attributes: attributesWith(1)}); s == nil || s.Known() {
		t.Errorf("attributes that cannot be read: %v", s)
	}
	if s := SelectorOf(resolver.State{}); s != nil {
		t.Errorf("no attributes: %v", s)
	}
}

// A list of names that cannot be right is not used.
func TestAnUnknownListOfCompressors(t *testing.T) {
	before := registered
	defer func() {
		registered = before
		Compressors.missing.Store(false)
	}()
	for _, list := range [][]string{nil, {"unheard-of"}, {gzip.Name, "unheard-of"}} {
		registered = list
		if names := CompressorNames(); !slices.Equal(names, []string{gzip.Name}) || Compressors.Found() {
			t.Errorf("%q: %q", list, names)
		}
		Compressors.missing.Store(false)
	}
}

// A client's transport says nothing but what a sessionConn answers, as long as there are no calls.
func TestASessionConnNeedsNoServer(t *testing.T) {
	c, _ := connected(t)
	conn, err := grpc.NewClient("passthrough:///session", insecurely, grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return c, nil }))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.Connect()
	untilReady(t, conn)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server != nil {
		t.Error("grpc-go's transport has written something else")
	}
}

// A sessionConn leaves frames that it does not know to a server.
func TestAnUnknownFrameStartsAServer(t *testing.T) {
	c, _ := connected(t)
	first := frame([]byte(preface), frameSettings, 0, nil)
	if _, err := c.Write(frame(first, 2, 0, make([]byte, 5))); err != nil { // PRIORITY
		t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server == nil {
		t.Error("there is none")
	}
}
