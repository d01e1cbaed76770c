//go:build linux

package main

import (
	"github.com/nearcall/nearcall/internal/wire"
)

// Attacks with messages, and with connections that send little.
var messageAttacks = []*attack{
	{
		name: "messages-empty", path: overTCP, full: 100, short: 20,
		what:   "%s unread calls full of empty messages",
		before: "0.5 to 0.7 GB",
		run:    func(a *attacker) error { return a.unread(nil) },
	},
	{
		name: "messages-byte", path: overTCP, full: 100, short: 20,
		what:   "%s unread calls full of messages of a byte",
		before: "0.5 to 0.7 GB",
		run:    func(a *attacker) error { return a.unread([]byte{0}) },
	},
	{
		name: "claims", path: overTCP, full: 1_000, short: 1_000,
		what:   "%s calls that claim a message of 4 MiB and send a byte of it, GOMEMLIMIT=1GiB",
		before: "p50 from 0.15 to 2.05 ms",
		env:    []string{"GOMEMLIMIT=1GiB"},
		run:    claims,
	},
	{
		name: "frames-half", path: overTCP, full: 2_000, short: 500,
		what:   "%s connections with a frame of which the end is missing",
		before: "not measured",
		run: func(a *attacker) error {
			half := frame(nil, 0x40, 0, make([]byte, 65_000)...)
			return a.connections(half[:64_000])
		},
	},
	{
		name: "connections-foreign", path: overTCP, full: 400, short: 100,
		what:   "%s connections that speak HTTP/2 and send 1 MiB of empty frames, the server with NoGRPCClients",
		before: "21 s of CPU, p99 of 695 ms",
		server: []string{"-nogrpc"},
		run:    emptyForeignFrames,
	},
	{
		name: "connections-idle", path: overTCP, full: 5_000, short: 1_000,
		what:   "%s connections that say HELLO and no more",
		before: "not measured",
		known:  &excuse{each: 24 << 10, why: "a connection takes some 20 kB of itself; how many there are is for the listener to limit"},
		run:    func(a *attacker) error { return a.connections(nil) },
	},
}

// unread fills the windows of calls whose handlers do not receive.
func (a *attacker) unread(message []byte) error {
	const window = 256 << 10 // of a call, by default
	p, err := a.enter(a.over)
	if err != nil {
		return err
	}
	for range a.count {
		if err := p.write(p.open(nil, "HalfDuplexCall", request{})); err != nil {
			return err
		}
		err := p.repeat(window/(wire.MessageCost+len(message)), func(b []byte) []byte { return p.send(b, message) })
		if err != nil {
			return err
		}
	}
	return nil
}

func claims(a *attacker) error {
	p, err := a.enter(a.over)
	if err != nil {
		return err
	}
	body := append(uint62(nil, 4<<20-1), 0)
	return p.repeat(a.count, func(b []byte) []byte {
		b = p.open(b, "UnaryCall", request{})
		return frame(b, wire.KindStream|wire.FlagMessage|wire.FlagMore, p.last, body...)
	})
}

// emptyForeignFrames sends frames of 9 bytes to a server that waits for a call to refuse.
func emptyForeignFrames(a *attacker) error {
	frames := make([]byte, 1<<20)
	for i := 3; i < len(frames); i += 9 {
		frames[i] = 4 // SETTINGS
	}
	for range a.count {
		p, err := a.dial(a.over)
		if err != nil {
			return err
		}
		p.drain()
		if err := p.write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")); err != nil {
			return err
		}
		if err := p.write(frames); err != nil {
			return err
		}
	}
	return nil
}

// connections opens and greets on a.count connections, and sends b on each.
func (a *attacker) connections(b []byte) error {
	for range a.count {
		p, err := a.enter(a.over)
		if err != nil {
			return err
		}
		if err := p.write(b); err != nil {
			return err
		}
	}
	return nil
}
