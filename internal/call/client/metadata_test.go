package client

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/grpcinside"
	"github.com/nearcall/nearcall/internal/testing/callservice"
)

// withoutRaw runs f as if grpc-go had no function for raw metadata.
func withoutRaw(t *testing.T, f func(*testing.T)) {
	t.Run("without raw metadata", func(t *testing.T) {
		defer grpcinside.RawMetadata.Hide()()
		f(t)
	})
}

func TestOutgoingMetadata(t *testing.T) {
	bg := context.Background()
	test := func(t *testing.T) {
		for name, c := range map[string]struct {
			ctx  context.Context
			want metadata.MD
			err  string
		}{
			"none":            {bg, nil, ""},
			"nil":             {metadata.NewOutgoingContext(bg, nil), nil, ""},
			"empty":           {metadata.NewOutgoingContext(bg, metadata.MD{}), nil, ""},
			"one":             {metadata.NewOutgoingContext(bg, metadata.Pairs("a", "1")), metadata.MD{"a": {"1"}}, ""},
			"several":         {metadata.NewOutgoingContext(bg, metadata.Pairs("a", "1", "a", "2", "b", "")), metadata.MD{"a": {"1", "2"}, "b": {""}}, ""},
			"added":           {metadata.AppendToOutgoingContext(bg, "a", "1", "b", "2", "a", "3"), metadata.MD{"a": {"1", "3"}, "b": {"2"}}, ""},
			"added twice":     {metadata.AppendToOutgoingContext(metadata.AppendToOutgoingContext(metadata.NewOutgoingContext(bg, metadata.Pairs("a", "1")), "a", "2"), "a", "3"), metadata.MD{"a": {"1", "2", "3"}}, ""},
			"no values":       {metadata.NewOutgoingContext(bg, metadata.MD{"a": nil, "b": {"1"}}), metadata.MD{"b": {"1"}}, ""},
			"reserved":        {metadata.NewOutgoingContext(bg, metadata.Pairs("te", "x", "grpc-timeout", "1S", ":path", "/", "a", "1")), metadata.MD{"a": {"1"}}, ""},
			"reserved, added": {metadata.AppendToOutgoingContext(bg, "user-agent", "x", ":path", "/", "a", "1"), metadata.MD{"a": {"1"}}, ""},
			"binary":          {metadata.AppendToOutgoingContext(bg, "a-bin", "\x00\xff"), metadata.MD{"a-bin": {"\x00\xff"}}, ""},
			"bad key":         {metadata.NewOutgoingContext(bg, metadata.MD{"a b": {"1"}}), nil, "illegal characters"},
			"bad key, added":  {metadata.AppendToOutgoingContext(bg, "a b", "1"), nil, "illegal characters"},
			"bad value":       {metadata.NewOutgoingContext(bg, metadata.Pairs("a", "\n")), nil, "non-printable"},
			"bad value added": {metadata.AppendToOutgoingContext(bg, "a", "é"), nil, "non-printable"},
			"empty key":       {metadata.NewOutgoingContext(bg, metadata.MD{"": {"1"}}), nil, "empty key"},
		} {
			got, err := call.Outgoing(c.ctx)
			switch {
			case c.err != "" && (status.Code(err) != codes.Internal || !strings.Contains(err.Error(), c.err)):
				t.Errorf("%s: %v, want Internal and %q", name, err, c.err)
			case c.err == "" && (err != nil || callservice.Show(got) != callservice.Show(c.want)):
				t.Errorf("%s: %s, %v; want %s", name, callservice.Show(got), err, callservice.Show(c.want))
			}
		}
	}
	t.Run("with the same layout", test)
	withoutRaw(t, test)
}

func TestOutgoingMetadataWithUpperCaseKeys(t *testing.T) {
	ctx := metadata.NewOutgoingContext(context.Background(), metadata.MD{"Upper": {"1"}})
	if _, err := call.Outgoing(ctx); status.Code(err) != codes.Internal {
		t.Errorf("%v, want Internal, as in grpc-go", err)
	}
	if md, err := call.Outgoing(metadata.AppendToOutgoingContext(context.Background(), "Upper", "1")); err != nil || callservice.Show(md) != `map["upper":["1"]]` {
		t.Errorf("added: %s, %v; AppendToOutgoingContext makes keys lower case", callservice.Show(md), err)
	}
	withoutRaw(t, func(t *testing.T) {
		// The exported accessor converts keys to lower case.
		if md, err := call.Outgoing(ctx); err != nil || callservice.Show(md) != `map["upper":["1"]]` {
			t.Errorf("%s, %v", callservice.Show(md), err)
		}
	})
}

func TestOutgoingMetadataIsTheCallsOwn(t *testing.T) {
	test := func(t *testing.T) {
		mine := metadata.Pairs("a", "1", "a", "2")
		ctx := metadata.NewOutgoingContext(context.Background(), mine)
		md, err := call.Outgoing(ctx)
		if err != nil {
			t.Fatal(err)
		}
		mine["a"][0] = "changed"
		mine["b"] = []string{"new"}
		md["a"] = append(md["a"][:1], "theirs")
		if callservice.Show(md) != `map["a":["1" "theirs"]]` || mine["a"][1] != "2" {
			t.Errorf("the call has %s, the user %s: they share memory", callservice.Show(md), callservice.Show(mine))
		}
	}
	t.Run("with the same layout", test)
	withoutRaw(t, test)
}

// grpc-go refuses metadata before it connects, so the test can compare its errors without
// a server.
func FuzzOutgoingMetadataIsRefusedAsGRPCDoes(f *testing.F) {
	for _, s := range []string{"k", "", "K", "k k", ":path", ":", "k-bin", "-bin", "K-bin", "te", "a\r\nb", "\x00", "\x7f", "é", "\xff", "%", "grpc-status"} {
		f.Add(s, "v", true)
		f.Add(s, "v", false)
		f.Add("k", s, true)
		f.Add("k-bin", s, false)
	}
	f.Add(":k", "\x7f", false)
	grpcs, err := grpc.NewClient("passthrough:nowhere", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = grpcs.Close() })
	over, cancel := context.WithCancel(context.Background())
	cancel()
	f.Fuzz(func(t *testing.T, key, value string, added bool) {
		ctx := metadata.NewOutgoingContext(over, metadata.MD{key: {value}})
		if added {
			ctx = metadata.AppendToOutgoingContext(over, key, value)
		}
		theirs := grpcs.Invoke(ctx, "/s/m", nil, nil)
		_, ours := call.Outgoing(ctx)
		if ours == nil {
			ours = status.FromContextError(over.Err()).Err()
		}
		if status.Code(theirs) != status.Code(ours) || status.Convert(theirs).Message() != status.Convert(ours).Message() {
			t.Errorf("%q: %q (added: %v): grpc-go says %v, nearcall %v", key, value, added, theirs, ours)
		}
	})
}
