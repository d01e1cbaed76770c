package wire

import (
	"testing"

	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/link"
)

// Literal frames need no other frame to be decoded.
func TestLiteralFramesStandAlone(t *testing.T) {
	p := &link.Profile{Authority: "a:1", UserAgent: "ua", Accept: "gzip"}
	o := link.CallHeader{Profile: p, Method: "/a/b", Metadata: metadata.MD{"k": {"v", "w"}}}
	e := Encoder{Literal: true}
	for range 3 {
		step := Step{Stream: 1, Open: &o, HalfClose: true}
		b, _ := e.Append(nil, &step, 1000)
		f, n, err := Next(b)
		if err != nil || n != len(b) {
			t.Fatal(n, err)
		}
		rc, err := new(Decoder).Stream(f, nil, true)
		if err != nil || rc.Wrong != nil {
			t.Fatal(err, rc.Wrong)
		}
		if rc.Open.Method != o.Method || len(rc.Open.Metadata["k"]) != 2 || rc.Open.Accept != "gzip" || rc.Open.Authority != "a:1" {
			t.Errorf("decoded %+v %+v", rc.Open, rc.Open.Profile)
		}
	}
}
