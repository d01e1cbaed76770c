package server

import (
	"testing"

	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/testing/callservice"
)

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
			t.Errorf("validTrailer(%s) = %v, want valid: %v", callservice.Show(c.md), err, c.ok)
		}
	}
}
