//go:build linux

package main

import (
	"time"

	q "github.com/quic-go/quic-go"

	"github.com/nearcall/nearcall/internal/testing/attack"
	"github.com/nearcall/nearcall/internal/wire"
)

// Attacks with many calls.
var callAttacks = []*attack.Attack{
	{
		Name: "calls-byte", Path: overQUIC, Full: 20_000, Short: 4_000,
		What:   "%s calls of which only one byte arrives",
		Before: "not measured",
		Known:  aCall,
		Run:    func(a *attack.Attacker) error { return leaveOpen(a, []byte{1}) },
	},
	{
		Name: "calls-open", Path: overQUIC, Full: 20_000, Short: 4_000,
		What:   "%s calls opened and left",
		Before: "not measured",
		Known:  aCall,
		Run:    func(a *attack.Attacker) error { return leaveOpen(a, head("HalfDuplexCall", nil)) },
	},
	{
		Name: "calls-unread", Path: overQUIC, Full: 4_000, Short: 1_000,
		What:   "%s server streams, no credit given",
		Before: "not measured",
		Known:  aCall,
		Run:    func(a *attack.Attacker) error { return leaveOpen(a, request("StreamingOutputCall")) },
	},
	{
		Name: "calls-unread-many", Path: overQUIC, Full: 100, Short: 20,
		What:   "%s connections with 100 server streams each, no credit given",
		Before: "not measured",
		Known:  &attack.Excuse{Each: 100 * aCall.Each, Why: aCall.Why},
		Run: func(a *attack.Attacker) error {
			return connections(a, func(p *peer) error {
				err := p.greet()
				for i := 0; i < 100 && err == nil; i++ {
					_, err = p.call(a, request("StreamingOutputCall"))
				}
				return err
			})
		},
	},
	{
		Name: "open-reset", Path: overQUIC, Full: 200_000, Short: 20_000,
		What:   "%s calls opened and reset",
		Before: "not measured",
		Run:    func(a *attack.Attacker) error { return openAndReset(a, head("HalfDuplexCall", nil), 20, 0) },
	},
	{
		Name: "open-reset-later", Path: overQUIC, Full: 100_000, Short: 10_000,
		What:   "%s calls opened, 500 at a time, and reset when their handlers run",
		Before: "not measured",
		Run: func(a *attack.Attacker) error {
			return openAndReset(a, head("HalfDuplexCall", nil), 500, time.Millisecond)
		},
	},
	{
		Name: "open-reset-busy", Path: overQUIC, Full: 10_000, Short: 3_000,
		What:   "%s calls opened and reset whose handlers take 2 s",
		Before: "not measured",
		Run:    func(a *attack.Attacker) error { return openAndReset(a, head("StreamingInputCall", nil), 20, 0) },
	},
	{
		Name: "open-stop", Path: overQUIC, Full: 200_000, Short: 20_000,
		What:   "%s small calls whose replies are stopped at once",
		Before: "not measured",
		Run:    openAndStop,
	},
	{
		Name: "open-reset-head", Path: overQUIC, Full: 200_000, Short: 20_000,
		What:   "%s calls reset before their head is whole",
		Before: "not measured",
		Run:    func(a *attack.Attacker) error { return openAndReset(a, []byte{1}, 20, 0) },
	},
}

// aCall is what each call of an attack may cost.
var aCall = &attack.Excuse{
	Each: 28 << 10,
	Why:  "a call takes some 12 to 20 kB of itself; MaxConcurrentStreams limits those of a connection, and how many connections there are is for the listener to limit",
}

// most is how many calls a server lets a connection have open by default.
const most = 1000

// leaveOpen opens calls, as many on each connection as it may have, sends b on each, and reads
// nothing.
func leaveOpen(a *attack.Attacker, b []byte) error {
	var p *peer
	for i := range a.Count {
		var err error
		if i%most == 0 {
			p, err = enter(a, settings(1<<10, 1<<10))
		}
		if err == nil {
			_, err = p.call(a, b)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// openAndReset opens calls and sends b on each. Whenever as many calls are open as some says, it
// waits for the time after and resets them. A reset discards bytes of its call that are not in a
// packet yet, so openAndReset waits even if after is 0.
func openAndReset(a *attack.Attacker, b []byte, some int, after time.Duration) error {
	const code = q.StreamErrorCode(wire.ResetCancelled)
	p, err := enter(a, settings(1<<10, 1<<10))
	if err != nil {
		return err
	}
	var opened []*q.Stream
	for range a.Count {
		st, err := p.call(a, b)
		if err != nil {
			return err
		}
		if opened = append(opened, st); len(opened) < some {
			continue
		}
		time.Sleep(after + 50*time.Microsecond) // quic-go sends on its own goroutine
		for _, st := range opened {
			st.CancelWrite(code)
			st.CancelRead(code)
		}
		opened = opened[:0]
	}
	return nil
}

// openAndStop makes calls and does not let the server answer.
func openAndStop(a *attack.Attacker) error {
	p, err := enter(a, settings(1<<10, 1<<10))
	if err != nil {
		return err
	}
	b := request("EmptyCall")
	for range a.Count {
		st, err := p.call(a, b)
		if err != nil {
			return err
		}
		_ = st.Close()
		st.CancelRead(q.StreamErrorCode(wire.ResetCancelled))
	}
	return nil
}
