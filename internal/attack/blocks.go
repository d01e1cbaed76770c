//go:build linux

package main

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/wire"
)

// Attacks with the header blocks of calls.
var blockAttacks = []*attack{
	{
		name: "header-entries", path: overTCP, full: 6, short: 1,
		what:   "%s calls whose headers of 16 MiB are entries of 2 bytes",
		before: "1.55 GB",
		run:    headerEntries,
	},
	{
		name: "header-fits", path: overTCP, full: 40, short: 4,
		what:   "%s calls, left open, with as many entries as a header may have",
		before: "not measured",
		run:    fittingHeaders,
	},
	{
		name: "header-keys", path: overTCP, full: 990, short: 990,
		what:   "%s calls, left open, whose headers have 1,700 different keys",
		before: "165 MB",
		run:    differentKeys,
	},
	{
		name: "blocks-unfinished", path: overTCP, full: 50, short: 10,
		what:    "%s connections whose headers of 16 MiB do not end",
		before:  "1.66 GB, for as long as they stay",
		release: 30 * time.Second,
		run:     unfinishedBlocks,
	},
	{
		name: "ends", path: overTCP, full: 100, short: 20,
		what:   "%s connections that end a call which the server never made, with 480,000 details",
		before: "1.5 GB, 5.5 s of CPU for a fifth",
		run:    endsOfNoCall,
	},
	{
		name: "profiles", path: overTCP, full: 50, short: 10,
		what:    "%s connections with 256 profiles of 65 kB each",
		before:  "0.86 GB, for as long as they stay",
		release: time.Second,
		run:     profiles,
	},
	{
		name: "profile-encoding", path: overTCP, full: 900, short: 900,
		what:   "%s calls with a profile whose encoding has 60 kB, sent once, replies not read",
		before: "456 MB",
		run:    longEncoding,
	},
}

// blockSize is the largest header block that servers accept by default, less what a call's
// header needs beside its metadata.
const blockSize = 16<<20 - 64<<10

// headerEntries sends headers whose entries are a known key and an empty value: 2 bytes,
// whatever the length of the key.
func headerEntries(a *attacker) error {
	return a.headers(strings.Repeat("k", 256), blockSize/2)
}

// fittingHeaders sends as many such entries as a receiver accepts that counts the key and
// 32 bytes for each.
func fittingHeaders(a *attacker) error {
	return a.headers("k", blockSize/33)
}

// differentKeys sends headers whose keys are already known, so that an entry takes 3 bytes on
// the wire and a hundred in a map.
func differentKeys(a *attacker) error {
	p, err := a.enter(a.over)
	if err != nil {
		return err
	}
	md := make(metadata.MD)
	for i := range 1700 { // which fit into the table
		md[fmt.Sprintf("%03x", i)] = []string{""}
	}
	return p.repeat(a.count, func(b []byte) []byte {
		return p.open(b, "HalfDuplexCall", request{metadata: md})
	})
}

// headers opens calls whose metadata has that many entries of key, after a call that makes
// the key known.
func (a *attacker) headers(key string, entries int) error {
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
	for range a.count {
		if err := open(values); err != nil {
			return err
		}
	}
	return nil
}

// maxPart is how many bytes of a block one frame carries.
const maxPart = 60_000

func unfinishedBlocks(a *attacker) error {
	part := make([]byte, maxPart)
	var cut error
	for range a.count {
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
func longEncoding(a *attacker) error {
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
	return p.repeat(a.count, func(b []byte) []byte {
		return p.openAs(&long, b, "EmptyCall", request{ends: true})
	})
}

// endsOfNoCall sends what a callee sends, with a status of as many empty details as a block
// may have.
func endsOfNoCall(a *attacker) error {
	const call = 2
	details := append([]byte{8, 5}, bytes.Repeat([]byte{0x1a, 0}, 480_000)...)
	end := append(word([]byte{5, 0}, string(details)), 0)
	var cut error
	for range a.count {
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

func profiles(a *attacker) error {
	const long = 65_000
	name := strings.Repeat("p", long)
	var cut error
	for range a.count {
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
