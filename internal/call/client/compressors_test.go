package client

import (
	"context"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/experimental"

	"github.com/nearcall/nearcall/internal/grpcinside"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/testing/callservice"
)

func TestAcceptCompressors(t *testing.T) {
	accept := experimental.AcceptCompressors(" gzip ", "gzip", "identity")
	var ci callInfo
	known, err := ci.acceptCompressors(accept)
	if !known || err != nil || !slices.Equal(ci.accept, []string{gzip.Name}) {
		t.Errorf("AcceptCompressors is known: %v, and accepts %q, %v", known, ci.accept, err)
	}
	if known, _ := ci.acceptCompressors(grpc.WaitForReady(true)); known {
		t.Error("WaitForReady is taken for AcceptCompressors")
	}
	defer grpcinside.Accepted.Hide()()
	if known, err := ci.acceptCompressors(accept); !known || err != nil || ci.accepts("gzip") != "identity" {
		t.Errorf("without its list AcceptCompressors is known: %v, and accepts %q, %v", known, ci.accept, err)
	}
}

// encoded is a session whose calls claim to be compressed with name, which the client does
// not check.
type encoded struct {
	link.Session
	name string
}

func (e encoded) Invoke(ctx context.Context, c *link.UnaryCall) error {
	c.Profile = e.profile(c.Profile)
	return e.Session.Invoke(ctx, c)
}

func (e encoded) NewStream(ctx context.Context, o *link.CallHeader) (link.Stream, error) {
	o.Profile = e.profile(o.Profile)
	return e.Session.NewStream(ctx, o)
}

func (e encoded) profile(p *link.Profile) *link.Profile {
	own := *p
	own.Encoding = e.name
	return &own
}

func TestUnknownCompressionIsUnimplemented(t *testing.T) {
	handled := 0
	b := start(t, handlers{
		Unary:  func(_ context.Context, m *msg) (*msg, error) { handled++; return m, nil },
		Stream: func(grpc.ServerStream) error { handled++; return nil },
	}, nil, nil)
	c := New(options.NewClient(nil), Config{Sessions: callservice.Always{Session: encoded{b.session, "nosuch"}}})
	refused := func(err error) {
		t.Helper()
		callservice.WantCode(t, err, codes.Unimplemented)
		if err == nil || !strings.Contains(err.Error(), `grpc: Decompressor is not installed for grpc-encoding "nosuch"`) {
			t.Errorf("the error is %v", err)
		}
	}
	refused(c.Invoke(t.Context(), unaryMethod, new(msg), new(msg)))
	s, err := c.NewStream(t.Context(), streamDesc, streamMethod)
	if err != nil {
		t.Fatal(err)
	}
	refused(s.RecvMsg(new(msg)))
	if handled > 0 {
		t.Errorf("%d handlers ran", handled)
	}
	for _, name := range []string{"gzip", "identity", ""} {
		c := New(options.NewClient(nil), Config{Sessions: callservice.Always{Session: encoded{b.session, name}}})
		if err := c.Invoke(t.Context(), unaryMethod, new(msg), new(msg)); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}
