//go:build linux

package attack

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/wire"
)

// Attacks with the header blocks of calls.
var blockAttacks = []*Attack{
	{
		Name: "header-entries", Path: overTCP, Full: 6, Short: 1,
		What:   "%s calls whose headers of 16 MiB are entries of 2 bytes",
		Before: "1.55 GB",
		Run:    headerEntries,
	},
	{
		Name: "header-fits", Path: overTCP, Full: 40, Short: 2,
		What:   "%s calls, left open, with as many entries as a header may have",
		Before: "not measured",
		Run:    fittingHeaders,
	},
	{
		Name: "header-keys", Path: overTCP, Full: 990, Short: 200,
		What:   "%s calls, left open, whose headers have 1,700 different keys",
		Before: "165 MB",
		Run:    differentKeys,
	},
	{
		Name: "blocks-unfinished", Path: overTCP, Full: 50, Short: 4,
		What:    "%s connections whose headers of 16 MiB do not end",
		Before:  "1.66 GB, for as long as they stay",
		release: 30 * time.Second,
		Run:     unfinishedBlocks,
	},
	{
		Name: "ends", Path: overTCP, Full: 100, Short: 3,
		What:   "%s connections that end a call which the server never made, with 480,000 details",
		Before: "1.5 GB, 5.5 s of CPU for a fifth",
		Run:    endsOfNoCall,
	},
	{
		Name: "profiles", Path: overTCP, Full: 50, Short: 3,
		What:    "%s connections with 256 profiles of 65 kB each",
		Before:  "0.86 GB, for as long as they stay",
		release: time.Second,
		Run:     profiles,
	},
	{
		Name: "profile-encoding", Path: overTCP, Full: 900, Short: 900,
		What:   "%s calls with a profile whose encoding has 60 kB, sent once, replies not read",
		Before: "456 MB",
		Run:    longEncoding,
	},
}

// blockSize is the largest header block that servers accept by default, less what a call's
// header needs beside its metadata.
const blockSize = 16<<20 - 64<<10

// headerEntries sends headers whose entries are a known key and an empty value: 2 bytes,
// whatever the length of the key.
func headerEntries(a *Attacker) error {
	return a.headers(strings.Repeat("k", 256), blockSize/2)
}

// fittingHeaders sends as many such entries as a receiver accepts that counts the key and
// 32 bytes for each.
func fittingHeaders(a *Attacker) error {
	return a.headers("k", blockSize/33)
}

// differentKeys sends headers whose keys are already known, so that an entry takes 3 bytes on
// the wire and a hundred in a map.
func differentKeys(a *Attacker) error {
	p, err := a.enter(a.over)
	if err != nil {
		return err
	}
	md := make(metadata.MD)
	for i := range 1700 { // which fit into the table
		md[fmt.Sprintf("%03x", i)] = []string{""}
	}
	return p.repeat(a.Count, func(b []byte) []byte {
		return p.open(b, "HalfDuplexCall", request{metadata: md})
	})
}

// headers opens calls whose metadata has that many entries of key, after a call that makes
// the key known.
func (a *Attacker) headers(key string, entries int) error {
	p, err := a.enter(a.over)
	if err != nil {
		return err
	}
	values := make([]string, entries)
	open := func(values []string) error {
		return p.write(p.open(nil, "HalfDuplexCall", request{metadata: metadata.MD{key: values}}))
	}
	if err := open(values[:1]); err != nil {
		return err
	}
	for range a.Count {
		if err := open(values); err != nil {
			return err
		}
	}
	return nil
}

// maxPart is how many bytes of a block one frame carries.
const maxPart = 60_000

func unfinishedBlocks(a *Attacker) error {
	part := make([]byte, maxPart)
	var cut error
	for range a.Count {
		p, err := a.enter(a.over)
		if err != nil {
			return err
		}
		for n := 0; n+maxPart <= blockSize && err == nil; n += maxPart {
			err = p.write(frame(nil, wire.KindPart, 1, part...))
		}
		if err != nil { // continue with the others
			cut = err
		}
	}
	return cut
}

// longEncoding makes calls with an encoding that the server does not know, and repeats in
// each reply.
func longEncoding(a *Attacker) error {
	p, err := a.dial(a.over)
	if err != nil {
		return err
	}
	hello := &wire.Hello{Version: wire.Version, Stream: wire.MinWindow, Connection: wire.MinWindow, Block: 1 << 30}
	if err := p.write(wire.AppendHello([]byte(wire.Magic), hello)); err != nil {
		return err
	}
	long := profile
	long.Encoding = strings.Repeat("\xff", 60_000)
	return p.repeat(a.Count, func(b []byte) []byte {
		return p.openAs(&long, b, "EmptyCall", request{ends: true})
	})
}

// endsOfNoCall sends what a callee sends, with a status of as many empty details as a block
// may have.
func endsOfNoCall(a *Attacker) error {
	const call = 2
	details := append([]byte{8, 5}, bytes.Repeat([]byte{0x1a, 0}, 480_000)...)
	end := append(word([]byte{5, 0}, string(details)), 0)
	var cut error
	for range a.Count {
		p, err := a.enter(a.over)
		if err != nil {
			return err
		}
		rest := end
		for ; len(rest) > maxPart && err == nil; rest = rest[maxPart:] {
			err = p.write(frame(nil, wire.KindPart, call, rest[:maxPart]...))
		}
		if err == nil {
			err = p.write(frame(nil, wire.KindStream|wire.FlagEnd, call, rest...))
		}
		if err != nil { // the others go on
			cut = err
		}
	}
	return cut
}

func profiles(a *Attacker) error {
	const long = 65_000
	name := strings.Repeat("p", long)
	var cut error
	for range a.Count {
		p, err := a.enter(a.over)
		if err != nil {
			return err
		}
		for i := 0; i < 256 && err == nil; i++ {
			p.last = uint64(2*i + 1)
			body := append(word([]byte{1}, "x"), 0) // the method, a new profile
			body = word(body, name)
			body = append(body, 0, 0, 0, 0, 0, 0) // the profile's other parts, no timeout, no metadata
			err = p.write(frame(nil, wire.KindStream|wire.FlagHead|wire.FlagEnd, p.last, body...))
		}
		if err != nil {
			cut = err
		}
	}
	return cut
}
