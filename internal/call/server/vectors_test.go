package server

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

var update = flag.Bool("update", false, "write the vectors anew")

// A metadataVector is metadata in a frame, and what of it a receiver delivers to its user.
// Values are in hex.
type metadataVector struct {
	About     string      `json:"about"`
	From      string      `json:"from"` // client or server
	Hex       string      `json:"hex"`  // of the frame, with its length
	Sent      [][2]string `json:"sent"` // in order
	Delivered [][2]string `json:"delivered"`
}

var reservedPairs = []string{"te", "trailers", "grpc-timeout", "1S", "grpc-encoding", "identity", "grpc-message-type", "m",
	"grpc-message", "text", "grpc-status", "5", "content-type", "text/plain", "user-agent", "other"}

// TestVectorsOfMetadata also writes test vectors for other implementations.
func TestVectorsOfMetadata(t *testing.T) {
	const head, end = wire.KindStream | wire.FlagHead, wire.KindStream | wire.FlagEnd
	open := []byte("\x01\x04/s/m\x00\x04host\x02ua\x00\x00\x00\x00") // method, a new profile, and no timeout
	var got []metadataVector
	for _, v := range []struct {
		about, from string
		kind        wire.Kind
		before      []byte // the fields of the frame before the metadata
		sent        []string
	}{
		{"A value has any bytes but control characters, a tab is none of these, and the order of a key's values holds. The bytes of a -bin key come " +
			"as they are, and a comma in them has no meaning.", "client", head, open,
			[]string{"utf-8", "n\u00e4h \u20ac", "latin-1", "n\xe4h", "tab", "a\tb", "empty", "", "values", "b", "values", "a", "bytes-bin", "\x00,\xff\n", "bytes-bin", ""}},
		{"Keys have the characters that HTTP/2 allows.", "client", head, open, []string{"0a-_.!#$%&'*+^`|~", "1"}},
		{"Keys that gRPC reserves are ignored in a call's head.", "client", head, open, append([]string{"k", "v"}, reservedPairs...)},
		{"They are ignored in a header. Its grpc-encoding names the encoding of the messages.", "server", head, nil, append(reservedPairs[:len(reservedPairs):len(reservedPairs)], "k", "v")},
		{"They are ignored in a trailer. grpc-status-details-bin is not one of them.", "server", end, []byte{0},
			append([]string{"k", "v", "grpc-status-details-bin", "\x08\x05"}, reservedPairs...)},
	} {
		body := binary.AppendUvarint(v.before, uint64(len(v.sent)/2))
		vec := metadataVector{About: v.about, From: v.from}
		for i := 0; i < len(v.sent); i += 2 {
			key, value := v.sent[i], v.sent[i+1]
			body = append(append(body, 1, byte(len(key))), key...)
			body = append(append(body, byte(len(value))), value...)
			vec.Sent = append(vec.Sent, [2]string{key, hex.EncodeToString([]byte(value))})
		}
		frame := binary.LittleEndian.AppendUint16(nil, uint16(len(body)+2))
		frame = append(append(frame, byte(v.kind), 1), body...)
		vec.Hex = hex.EncodeToString(frame)
		f, n, err := wire.Next(frame)
		if err != nil || n != len(frame) {
			t.Fatalf("%s: %d bytes, %v", v.about, n, err)
		}
		var d wire.Decoder
		rc, err := d.Stream(f, nil, v.from == "client")
		if err != nil || rc.Wrong != nil {
			t.Fatalf("%s: %v, %v", v.about, err, rc.Wrong)
		}
		var delivered metadata.MD
		switch {
		case rc.Open != nil:
			delivered, _ = metadata.FromIncomingContext(newServerCall(rc.Open))
			delete(delivered, ":authority")
		case rc.End != nil:
			delivered = call.FullTrailer(rc.End, metadata.MD{}, "")
		default:
			delivered = call.FullHeader(rc.Header, "")
		}
		for _, added := range []string{"content-type", "user-agent"} { // from the profile
			if ours := delivered.Get(added); len(ours) > 0 && ours[0] != "text/plain" && ours[0] != "other" {
				delete(delivered, added)
			}
		}
		for i := 0; i < len(v.sent); i += 2 { // the order of the keys has no meaning
			key := v.sent[i]
			for _, value := range delivered[key] {
				vec.Delivered = append(vec.Delivered, [2]string{key, hex.EncodeToString([]byte(value))})
			}
			delete(delivered, key)
		}
		if len(delivered) > 0 {
			t.Errorf("%s: it also delivers %v", v.about, delivered)
		}
		for _, pair := range vec.Delivered {
			if call.Reserved(pair[0]) {
				t.Errorf("%s: %s is delivered", v.about, pair[0])
			}
		}
		got = append(got, vec)
	}

	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(got); err != nil {
		t.Fatal(err)
	}
	const file = "../../wire/testdata/metadata.json"
	if *update {
		if err := os.WriteFile(file, out.Bytes(), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(file); err != nil || !bytes.Equal(out.Bytes(), want) {
		t.Errorf("%v; %s differs, say go test -update if that is meant. Now:\n%s", err, file, out.Bytes())
	}
	if !strings.Contains(out.String(), link.EncodingKey) {
		t.Error("no vector has the key of encodings")
	}
}
