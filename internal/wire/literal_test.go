package wire

import (
	"testing"

	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/link"
)

// Literal frames need no other frame to be decoded, and a recent profile is not made again.
func TestLiteralFramesStandAlone(t *testing.T) {
	p := &link.Profile{Authority: "a:1", UserAgent: "ua", Accept: "gzip"}
	o := link.CallHeader{Profile: p, Method: "/a/b", Metadata: metadata.MD{"k": {"v", "w"}}}
	e := Encoder{Literal: true}
	var last *link.Profile
	for range 3 {
		step := Step{Stream: 1, Open: &o, HalfClose: true}
		b, _ := e.Append(nil, &step, 1000)
		f, n, err := Next(b)
		if err != nil || n != len(b) {
			t.Fatal(n, err)
		}
		d := Decoder{Recent: last}
		rc, err := d.Stream(f, nil, true)
		if err != nil || rc.Wrong != nil {
			t.Fatal(err, rc.Wrong)
		}
		if rc.Open.Method != o.Method || len(rc.Open.Metadata["k"]) != 2 || rc.Open.Accept != "gzip" || rc.Open.Authority != "a:1" {
			t.Errorf("decoded %+v %+v", rc.Open, rc.Open.Profile)
		}
		if last != nil && rc.Open.Profile != last {
			t.Error("the recent profile was made again")
		}
		last = rc.Open.Profile
	}
	other := &link.Profile{Authority: "a:2", UserAgent: "ua"}
	o.Profile = other
	step := Step{Stream: 1, Open: &o}
	b, _ := e.Append(nil, &step, 1000)
	f, _, _ := Next(b)
	d := Decoder{Recent: last}
	if rc, err := d.Stream(f, nil, true); err != nil || rc.Open.Authority != "a:2" || rc.Open.Accept != "" {
		t.Errorf("another profile: %v, %v", rc.Open, err)
	}
}
