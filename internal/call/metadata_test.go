package call

import (
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/testing/callservice"
)

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
		{":anything Goes", "v", true}, // and is dropped by Reserved
		{":anything", "\x00", false},
	} {
		if err := ValidatePair(c.key, c.value); (err == nil) != c.ok {
			t.Errorf("ValidatePair(%q, %q) = %v, want valid: %v", c.key, c.value, err, c.ok)
		}
	}
	if err := ValidatePair("k", "fine", "fine", "\x00"); err == nil {
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
		if got := Join(c.md.Copy(), c.more); got == nil || callservice.Show(got) != callservice.Show(c.want) {
			t.Errorf("Join(%s, %s) = %s, want %s", callservice.Show(c.md), callservice.Show(c.more), callservice.Show(got), callservice.Show(c.want))
		}
	}
	more := metadata.Pairs("a", "1")
	got := Join(nil, more)
	more["a"][0] = "changed"
	if got["a"][0] != "1" {
		t.Error("join shares the values with their giver")
	}
}

// What ValidatePair accepts can be sent over HTTP/2 unchanged: RFC 9113 requires header
// names in lower case and values without control characters.
func FuzzValidPairsAreSafeInHTTP2(f *testing.F) {
	for _, s := range []string{"k", "", "K", ":path", "k-bin", "a\r\nb", "\x00", "é", "grpc-status"} {
		f.Add(s, "v")
		f.Add("k", s)
	}
	const name = "abcdefghijklmnopqrstuvwxyz0123456789!#$%&'*+-.^_`|~"
	f.Fuzz(func(t *testing.T, key, value string) {
		if ValidatePair(key, value) != nil || Reserved(key) {
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
