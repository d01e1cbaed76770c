package shm

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "write the golden vectors anew")

// golden compares what this side sends and does with a file.
func golden(t *testing.T, name string, v any) {
	t.Helper()
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, out.Bytes(), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(out.Bytes(), want) {
		t.Errorf("%v; %s differs, say go test -update if that is meant. Now:\n%s", err, file, out.Bytes())
	}
}

// What a side sends in a handshake.
type said struct {
	From        string   `json:"from"`
	Hex         string   `json:"hex"`
	Verdict     string   `json:"verdict,omitempty"`
	Version     uint64   `json:"version,omitempty"`
	Features    uint64   `json:"features,omitempty"`
	Ring        int      `json:"ring,omitempty"`
	Slabs       int      `json:"slabs,omitempty"`
	Why         string   `json:"why,omitempty"`
	Descriptors []string `json:"descriptors,omitempty"`
}

type handshake struct {
	About string `json:"about"`
	Says  []said `json:"says"`
}

func TestGoldenHandshakes(t *testing.T) {
	offers := func(o offer, more ...byte) said {
		b := append(appendOffer(nil, o), more...)
		b[len(Line)] += byte(len(more))
		return said{From: "client", Hex: hex.EncodeToString(b), Version: o.version, Features: o.features}
	}
	answers := func(to said) said {
		b, err := hex.DecodeString(to.Hex)
		if err != nil {
			t.Fatal(err)
		}
		o, err := parseOffer(b[len(Line)+1:])
		if err != nil || o != (offer{to.Version, to.Features}) {
			t.Fatal(o, err)
		}
		terms := o.agreed()
		terms.layout.slabs = 64 << 20 // also on 32 bits
		b = appendTerms(nil, terms)
		if got, err := parseTerms(b[len(Line)+2:]); got != terms || err != nil {
			t.Fatal(got, err)
		}
		return said{
			From: "server", Hex: hex.EncodeToString(b), Verdict: "+", Version: terms.version, Features: terms.features,
			Ring: terms.layout.ring, Slabs: terms.layout.slabs, Descriptors: []string{"memory", "room socket"},
		}
	}
	refuses := func(why string) said {
		return said{From: "server", Hex: hex.EncodeToString(appendDecline(nil, why)), Verdict: "-", Why: why}
	}
	verdict := func(v byte) said {
		return said{From: "client", Hex: hex.EncodeToString([]byte{v}), Verdict: string(v)}
	}
	now, later := offers(offer{version, features}), offers(offer{2, 0x205}, 7, 8, 9)
	golden(t, "handshakes.json", []handshake{
		{"The server takes the offer, and the client what it was sent. The connection goes on in the rings.", []said{now, answers(now), verdict(takes)}},
		{"A client of a later version, which knows features, and says more: none of that comes back.", []said{later, answers(later), verdict(takes)}},
		{"The server declines. The connection goes on as a socket, with the line.", []said{now, refuses("DisableSharedMemory or WithDisableSharedMemory")}},
		{"The client cannot use what it was sent. The connection goes on as a socket, with the line.", []said{now, answers(now), verdict(declines)}},
	})
}

// The offsets of the parts of the memory.
type parts struct {
	Ring          int   `json:"ring"`
	Slabs         int   `json:"slabs"`
	ServerSegment int64 `json:"server segment"`
	ClientSegment int64 `json:"client segment"`
	ServerSlabs   int64 `json:"server slabs"`
	ClientSlabs   int64 `json:"client slabs"`
	End           int64 `json:"end"`
}

func TestGoldenLayouts(t *testing.T) {
	var all []parts
	for _, l := range []layout{{ringSize, 64 << 20}, {minRing, partAlign}, {1 << 16, 4 << 20}, {maxRing, maxSlabs}} {
		if err := l.check(); err != nil {
			t.Fatal(err)
		}
		all = append(all, parts{l.ring, l.slabs, l.segmentAt(true), l.segmentAt(false), l.slabsAt(true), l.slabsAt(false), l.size()})
	}
	golden(t, "layouts.json", all)
}
