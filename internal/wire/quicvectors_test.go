package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
)

// A quicVector is one direction of a QUIC stream.
type quicVector struct {
	vector
	FIN bool `json:"fin"` // the direction ends with FIN
}

// quicStreams returns the vectors without what the frames say.
func quicStreams() []quicVector {
	hello := Hello{Version: 1, Stream: MinWindow, Connection: MinWindow, Block: 1 << 20}
	client := hello
	client.Features = FeatureNoCalls
	call := link.CallHeader{
		Method: "/grpc.testing.TestService/UnaryCall", Metadata: metadata.MD{"key": {"one", "two"}},
		Profile: &link.Profile{Authority: "example.com:443", UserAgent: "nearcall", Accept: "gzip"},
	}
	steps := func(all ...Step) (frames []string) {
		e := Encoder{Literal: true}
		for _, s := range all {
			for s.Stream = 1; !s.Done(); {
				b, _ := e.Append(nil, &s, 1<<20)
				frames = append(frames, hex.EncodeToString(b))
			}
		}
		return frames
	}
	failed := &link.End{Status: status.New(codes.NotFound, "no such thing"), Trailer: metadata.MD{"key": {"three"}}}
	return []quicVector{
		{vector{About: "the control stream of a client that takes no calls, and leaves", From: "client", Hex: []string{
			hex.EncodeToString(AppendHello(nil, &client)), hex.EncodeToString(AppendDrain(nil, 0))}}, true},
		{vector{About: "the control stream of a server that drains after its client's call 7", From: "server", Hex: []string{
			hex.EncodeToString(AppendHello(nil, &hello)), hex.EncodeToString(AppendDrain(nil, NoLast)), hex.EncodeToString(AppendDrain(nil, 7))}}, false},
		{vector{About: "the control stream of its client, which answers the first DRAIN", From: "client", Hex: []string{
			hex.EncodeToString(AppendHello(nil, &client)), hex.EncodeToString(AppendPing(nil, KindPong, [8]byte{7}))}}, false},
		{vector{About: "a unary call", From: "client", Hex: steps(
			Step{Open: &call, Timeout: time.Second, HasMessage: true, Message: []byte("request"), HalfClose: true})}, true},
		{vector{About: "its reply", From: "server", Hex: steps(
			Step{Header: metadata.MD{"key": {"four"}}, HasMessage: true, Message: []byte("reply"), End: &link.End{}})}, true},
		{vector{About: "a stream, the names of which have no numbers either", From: "client", Hex: steps(
			Step{Open: &call}, Step{HasMessage: true, Message: []byte("first")}, Step{HasMessage: true, Message: []byte("second")}, Step{HalfClose: true})}, true},
		{vector{About: "a call that fails", From: "server", Hex: steps(Step{End: failed})}, true},
		{vector{About: "a call that was not processed", From: "server", Hex: []string{
			hex.EncodeToString(AppendReset(nil, 1, ResetUnprocessed, "the server is stopping"))}}, true},
	}
}

func TestVectorsOfQUIC(t *testing.T) {
	all := quicStreams()
	for i := range all {
		v := &all[i]
		var d Decoder
		for _, h := range v.Hex {
			b, err := hex.DecodeString(h)
			if err != nil {
				t.Fatal(err)
			}
			f, n, err := Next(b)
			if err != nil || n != len(b) {
				t.Fatalf("%s: %d of %d bytes are a frame (%v)", v.About, n, len(b), err)
			}
			v.Frames = append(v.Frames, say(t, &d, f, map[uint64][]byte{}, v.From == "client"))
		}
		if len(d.names) > 0 || len(d.profiles) > 0 && d.profiles[0].Authority == "" {
			t.Errorf("%s: names have got numbers", v.About)
		}
	}
	var got bytes.Buffer
	e := json.NewEncoder(&got)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(all); err != nil {
		t.Fatal(err)
	}
	const path = "testdata/quic.json"
	if *update {
		if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("%s differs from what the code writes; go test ./internal/wire -update writes it anew", path)
	}
}
