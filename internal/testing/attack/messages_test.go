//go:build linux

package attack

import (
	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/wire"
)

// Attacks with messages, and with connections that send little.
var messageAttacks = []*Attack{
	{
		Name: "messages-empty", Path: overTCP, Full: 100, Short: 10,
		What:   "%s unread calls full of empty messages",
		Before: "0.5 to 0.7 GB",
		Run:    func(a *Attacker) error { return a.unread(nil) },
	},
	{
		Name: "messages-byte", Path: overTCP, Full: 100, Short: 10,
		What:   "%s unread calls full of messages of a byte",
		Before: "0.5 to 0.7 GB",
		Run:    func(a *Attacker) error { return a.unread([]byte{0}) },
	},
	{
		Name: "claims", Path: overTCP, Full: 1_000, Short: 1_000,
		What:   "%s calls that claim a message of 4 MiB and send a byte of it, GOMEMLIMIT=1GiB",
		Before: "p50 from 0.15 to 2.05 ms",
		env:    []string{"GOMEMLIMIT=1GiB"},
		Run:    claims,
	},
	{
		Name: "frames-half", Path: overTCP, Full: 2_000, Short: 200,
		What:   "%s connections with a frame of which the end is missing",
		Before: "not measured",
		Run: func(a *Attacker) error {
			half := frame(nil, 0x40, 0, make([]byte, 65_000)...)
			return a.connections(half[:64_000])
		},
	},
	{
		Name: "connections-foreign", Path: overTCP, Full: 400, Short: 30,
		What:   "%s connections that speak HTTP/2 and send 1 MiB of empty frames, the server with OtherClients(0)",
		Before: "21 s of CPU, p99 of 695 ms",
		server: []nearcall.ServerOption{nearcall.OtherClients(0)},
		Run:    emptyForeignFrames,
	},
	{
		Name: "connections-idle", Path: overTCP, Full: 5_000, Short: 300,
		What:   "%s connections that say HELLO and no more",
		Before: "not measured",
		Known:  &Excuse{Each: 24 << 10, Why: "a connection takes some 20 kB of itself; how many there are is for the listener to limit"},
		Run:    func(a *Attacker) error { return a.connections(nil) },
	},
}

// unread fills the windows of calls whose handlers do not receive.
func (a *Attacker) unread(message []byte) error {
	const window = 256 << 10 // of a call, by default
	p, err := a.enter(a.over)
	if err != nil {
		return err
	}
	for range a.Count {
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

func claims(a *Attacker) error {
	p, err := a.enter(a.over)
	if err != nil {
		return err
	}
	body := append(uint62(nil, 4<<20-1), 0)
	return p.repeat(a.Count, func(b []byte) []byte {
		b = p.open(b, "UnaryCall", request{})
		return frame(b, wire.KindStream|wire.FlagMessage|wire.FlagMore, p.last, body...)
	})
}

// emptyForeignFrames sends frames of 9 bytes to a server that waits for a call to refuse.
func emptyForeignFrames(a *Attacker) error {
	frames := make([]byte, 1<<20)
	for i := 3; i < len(frames); i += 9 {
		frames[i] = 4 // SETTINGS
	}
	for range a.Count {
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

// connections opens and greets on a.Count connections, and sends b on each.
func (a *Attacker) connections(b []byte) error {
	for range a.Count {
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
