package call

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/grpcinside"
)

// show returns all of md: its own String hides the values.
func show(md metadata.MD) string { return fmt.Sprintf("%q", map[string][]string(md)) }

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
			got, err := outgoing(c.ctx)
			switch {
			case c.err != "" && (status.Code(err) != codes.Internal || !strings.Contains(err.Error(), c.err)):
				t.Errorf("%s: %v, want Internal and %q", name, err, c.err)
			case c.err == "" && (err != nil || show(got) != show(c.want)):
				t.Errorf("%s: %s, %v; want %s", name, show(got), err, show(c.want))
			}
		}
	}
	t.Run("with the same layout", test)
	withoutRaw(t, test)
}

func TestOutgoingMetadataWithUpperCaseKeys(t *testing.T) {
	ctx := metadata.NewOutgoingContext(context.Background(), metadata.MD{"Upper": {"1"}})
	if _, err := outgoing(ctx); status.Code(err) != codes.Internal {
		t.Errorf("%v, want Internal, as in grpc-go", err)
	}
	if md, err := outgoing(metadata.AppendToOutgoingContext(context.Background(), "Upper", "1")); err != nil || show(md) != `map["upper":["1"]]` {
		t.Errorf("added: %s, %v; AppendToOutgoingContext makes keys lower case", show(md), err)
	}
	withoutRaw(t, func(t *testing.T) {
		// The exported accessor converts keys to lower case.
		if md, err := outgoing(ctx); err != nil || show(md) != `map["upper":["1"]]` {
			t.Errorf("%s, %v", show(md), err)
		}
	})
}

func TestOutgoingMetadataIsTheCallsOwn(t *testing.T) {
	test := func(t *testing.T) {
		mine := metadata.Pairs("a", "1", "a", "2")
		ctx := metadata.NewOutgoingContext(context.Background(), mine)
		md, err := outgoing(ctx)
		if err != nil {
			t.Fatal(err)
		}
		mine["a"][0] = "changed"
		mine["b"] = []string{"new"}
		md["a"] = append(md["a"][:1], "theirs")
		if show(md) != `map["a":["1" "theirs"]]` || mine["a"][1] != "2" {
			t.Errorf("the call has %s, the user %s: they share memory", show(md), show(mine))
		}
	}
	t.Run("with the same layout", test)
	withoutRaw(t, test)
}

func TestValidatePair(t *testing.T) {
	for _, c := range []struct {
		key, value string
		ok         bool
	}{
		{"k", "v", true},
		{"k", "", true},
		{"abcdefghijklmnopqrstuvwxyz0123456789-_.", "v", true},
		{"k", " !~", true},
		{"", "v", false},
		{"K", "v", false},
		{"k k", "v", false},
		{"k:", "v", false},
		{"ké", "v", false},
		{"k\x00", "v", false},
		{"k", "\x1f", false},
		{"k", "\x7f", false},
		{"k", "\t", false},
		{"k", "a\r\nb: c", false},
		{"k", "é", false},
		{"k-bin", "\x00\r\n\xff", true},
		{"-bin", "\x00", true},
		{"K-bin", "v", false},
		{"kbin", "\x00", false},
		{":anything Goes", "v", true}, // and is dropped by reserved
		{":anything", "\x00", false},
	} {
		if err := validatePair(c.key, c.value); (err == nil) != c.ok {
			t.Errorf("validatePair(%q, %q) = %v, want valid: %v", c.key, c.value, err, c.ok)
		}
	}
	if err := validatePair("k", "fine", "fine", "\x00"); err == nil {
		t.Error("the last of several values was not looked at")
	}
}

func TestJoin(t *testing.T) {
	for _, c := range []struct{ md, more, want metadata.MD }{
		{nil, nil, nil},
		{nil, metadata.Pairs("a", "1"), metadata.Pairs("a", "1")},
		{metadata.Pairs("a", "1"), nil, metadata.Pairs("a", "1")},
		{metadata.Pairs("a", "1"), metadata.Pairs("a", "2", "b", "3"), metadata.Pairs("a", "1", "a", "2", "b", "3")},
		{nil, metadata.Pairs("te", "x", "grpc-status", "0", ":path", "/", "a", "1"), metadata.Pairs("a", "1")},
		{nil, metadata.Pairs("grpc-status-details-bin", "x"), metadata.Pairs("grpc-status-details-bin", "x")},
	} {
		if got := join(c.md.Copy(), c.more); got == nil || show(got) != show(c.want) {
			t.Errorf("join(%s, %s) = %s, want %s", show(c.md), show(c.more), show(got), show(c.want))
		}
	}
	more := metadata.Pairs("a", "1")
	got := join(nil, more)
	more["a"][0] = "changed"
	if got["a"][0] != "1" {
		t.Error("join shares the values with their giver")
	}
}

func TestValidTrailer(t *testing.T) {
	for _, c := range []struct {
		md metadata.MD
		ok bool
	}{
		{nil, true},
		{metadata.Pairs("k", "v", "k", "w"), true},
		{metadata.Pairs("k", "tab\tand é"), true},
		{metadata.Pairs("k-bin", "\x00\n\xff"), true},
		{metadata.Pairs("k", "\n"), false},
		{metadata.Pairs("k", "ok", "k", "\x7f"), false},
		{metadata.MD{"K": {"v"}}, false},
		{metadata.MD{"": {"v"}}, false},
		{metadata.MD{"k k": {"v"}}, false},
		{metadata.MD{"k!": {"v"}}, true},
	} {
		if err := validTrailer(c.md); (err == nil) != c.ok {
			t.Errorf("validTrailer(%s) = %v, want valid: %v", show(c.md), err, c.ok)
		}
	}
}

// What validatePair accepts can be sent over HTTP/2 unchanged: RFC 9113 requires header
// names in lower case and values without control characters.
func FuzzValidPairsAreSafeInHTTP2(f *testing.F) {
	for _, s := range []string{"k", "", "K", ":path", "k-bin", "a\r\nb", "\x00", "é", "grpc-status"} {
		f.Add(s, "v")
		f.Add("k", s)
	}
	const name = "abcdefghijklmnopqrstuvwxyz0123456789!#$%&'*+-.^_`|~"
	f.Fuzz(func(t *testing.T, key, value string) {
		if validatePair(key, value) != nil || reserved(key) {
			return
		}
		if key == "" || strings.Trim(key, name) != "" {
			t.Errorf("%q is valid, and no name of a header", key)
		}
		if strings.HasSuffix(key, "-bin") {
			return // sent in base64
		}
		if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r >= 0x7f }) {
			t.Errorf("%q is valid, and no value of a header", value)
		}
	})
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
		_, ours := outgoing(ctx)
		if ours == nil {
			ours = status.FromContextError(over.Err()).Err()
		}
		if status.Code(theirs) != status.Code(ours) || status.Convert(theirs).Message() != status.Convert(ours).Message() {
			t.Errorf("%q: %q (added: %v): grpc-go says %v, nearcall %v", key, value, added, theirs, ours)
		}
	})
}
