//go:build linux

package main

import (
	"bytes"
	"strings"

	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/testing/attack"
	"github.com/nearcall/nearcall/internal/wire"
)

// Attacks with large headers, and with messages.
var blockAttacks = []*attack.Attack{
	{
		Name: "headers-entries", Path: overQUIC, Full: 6, Short: 2,
		What:   "%s calls, left open, whose headers of 8 MiB are entries with an empty key and value",
		Before: "not measured",
		Run: func(a *attack.Attacker) error {
			return blocks(a, metadata.MD{"k": make([]string, blockSize/33)})
		},
	},
	{
		Name: "headers-unfinished", Path: overQUIC, Full: 50, Short: 10,
		What:   "%s calls whose headers of 16 MiB do not end",
		Before: "not measured",
		Run:    unfinishedBlocks,
	},
	{
		Name: "claims", Path: overQUIC, Full: 1_000, Short: 1_000,
		What:   "%s calls that claim a message of 4 MiB and send a byte of it",
		Before: "not measured",
		Run: func(a *attack.Attacker) error {
			// A size is 7 bits a byte, the lowest first.
			claim := []byte{0xff, 0xff, 0xff, 1, 0}
			return leaveOpen(a, frame(head("UnaryCall", nil), wire.KindStream|wire.FlagMessage|wire.FlagMore, claim...))
		},
	},
	{
		Name: "messages-empty", Path: overQUIC, Full: 100, Short: 20,
		What:   "%s calls full of empty messages, which nobody receives",
		Before: "not measured",
		Run:    func(a *attack.Attacker) error { return leaveFull(a, nil) },
	},
	{
		Name: "messages-byte", Path: overQUIC, Full: 100, Short: 20,
		What:   "%s calls full of messages of a byte, which nobody receives",
		Before: "not measured",
		Run:    func(a *attack.Attacker) error { return leaveFull(a, []byte{0}) },
	},
}

// blockSize is the largest header block that servers accept by default, less what a call's
// header needs beside its metadata.
const blockSize = 16<<20 - 64<<10

// blocks opens calls with metadata.
func blocks(a *attack.Attacker, md metadata.MD) error {
	return leaveOpen(a, head("HalfDuplexCall", md))
}

func unfinishedBlocks(a *attack.Attacker) error {
	part := frame(nil, wire.KindPart, []byte(strings.Repeat("p", 60_000))...)
	return leaveOpen(a, bytes.Repeat(part, blockSize/60_000))
}

// leaveFull fills the windows of calls.
func leaveFull(a *attack.Attacker, message []byte) error {
	const window = 256 << 10 // of a call, by default
	one := frames(&wire.Step{HasMessage: true, Message: message})
	all := append(head("HalfDuplexCall", nil), bytes.Repeat(one, window/2/len(one))...)
	return leaveOpen(a, all)
}
