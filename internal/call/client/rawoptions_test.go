package client

import (
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/link"
)

// TestRawOptionsCopyNothing: RawHeader and RawTrailer give what was received itself, and grpc.Header and
// grpc.Trailer a copy with gRPC's keys.
func TestRawOptionsCopyNothing(t *testing.T) {
	header, trailer := metadata.Pairs("h", "1"), metadata.Pairs("t", "1")
	var rawHeader, rawTrailer, copiedHeader, copiedTrailer metadata.MD
	ci := &callInfo{desc: unaryDesc}
	err := ci.apply([]grpc.CallOption{
		RawHeader{grpc.HeaderCallOption{HeaderAddr: &rawHeader}},
		RawTrailer{grpc.TrailerCallOption{TrailerAddr: &rawTrailer}},
		grpc.Header(&copiedHeader), grpc.Trailer(&copiedTrailer),
	}, &methodConfig{}, call.DefaultCodec())
	if err != nil {
		t.Fatal(err)
	}
	ci.fillOptions(&link.Peer{}, header, trailer)
	header.Set("h", "2")
	trailer.Set("t", "2")
	for _, c := range []struct {
		md        metadata.MD
		key, want string
		keys      int
	}{
		{rawHeader, "h", "2", 1}, {rawTrailer, "t", "2", 1},
		{copiedHeader, "h", "1", 2}, {copiedTrailer, "t", "1", 1},
	} {
		if got := c.md.Get(c.key); len(got) != 1 || got[0] != c.want || len(c.md) != c.keys {
			t.Errorf("the option gives %v", c.md)
		}
	}
}
