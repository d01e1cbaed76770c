//go:build linux

package main

import (
	"time"

	"github.com/nearcall/nearcall/internal/wire"
)

// Attacks with many streams, and with frames that concern all of them.
var streamAttacks = []*attack{
	{
		name: "streams-unread", path: overTCP, full: 20_000, short: 4_000,
		what:   "%s server streams, no credit given",
		before: "8.5 GB",
		run: func(a *attacker) error {
			_, err := a.subscribe(a.count)
			return err
		},
	},
	{
		name: "streams-unread-many", path: overTCP, full: 200, short: 40,
		what:   "%s connections with 100 server streams each, no credit given",
		before: "not measured",
		known:  &excuse{each: 6 << 20, cpu: 50, why: "a connection may have 2 MiB waiting for a peer that does not read; how many connections there are is for the listener to limit"},
		run: func(a *attacker) error {
			for range a.count {
				if _, err := a.subscribe(100); err != nil {
					return err
				}
			}
			return nil
		},
	},
	{
		name: "credits", path: overTCP, full: 676, short: 100,
		what:   "20,000 such streams, then %s CREDITs of a byte for the connection",
		before: "3.2 s of CPU",
		run:    credits,
	},
	{
		name: "credits-calls", path: overTCP, full: 4_000_000, short: 2_000_000,
		what:   "%s CREDITs of a byte, for 300 server streams in turn that wait for it",
		before: "2.7 s of CPU",
		known:  &excuse{cpu: 15, why: "a frame takes the server some 100 ns, however small it is, and the attacker only writes prepared bytes"},
		run:    creditsOfCalls,
	},
	{
		name: "drains", path: overTCP, full: 20_000, short: 2_000,
		what:   "%s DRAINs with five times as many calls open",
		before: "118 s of CPU, unfinished after 206 s",
		run:    drains,
	},
	{
		name: "open-reset", path: overTCP, full: 1_000_000, short: 100_000,
		what:   "%s calls opened and reset",
		before: "7 s of CPU",
		run:    func(a *attacker) error { return a.openAndReset("HalfDuplexCall") },
	},
	{
		name: "open-reset-later", path: overTCP, full: 1_000_000, short: 50_000,
		what:   "%s calls opened, 500 at a time, and reset when their handlers run",
		before: "not measured",
		run:    openAndResetLater,
	},
	{
		name: "open-reset-busy", path: overTCP, full: 1_000_000, short: 100_000,
		what:   "%s calls opened and reset whose handlers take 2 s",
		before: "645 MB",
		run:    func(a *attacker) error { return a.openAndReset("StreamingInputCall") },
	},
	{
		name: "streams-open", path: overTCP, full: 100_000, short: 20_000,
		what:   "%s calls opened and left",
		before: "not measured",
		run: func(a *attacker) error {
			p, err := a.enter(a.over)
			if err != nil {
				return err
			}
			return p.repeat(a.count, func(b []byte) []byte { return p.open(b, "HalfDuplexCall", request{}) })
		},
	},
}

// subscribe opens n server streams on a connection with the smallest window for the
// connection and large windows for the streams.
func (a *attacker) subscribe(n int) (*peer, error) {
	p, err := a.dial(a.over)
	if err != nil {
		return nil, err
	}
	p.drain()
	if err := p.greet(1<<20, wire.MinWindow); err != nil {
		return nil, err
	}
	return p, p.repeat(n, func(b []byte) []byte {
		return p.open(b, "StreamingOutputCall", request{message: true, ends: true})
	})
}

// credits gives the connection one byte of credit at a time, while all its streams wait for
// it.
func credits(a *attacker) error {
	p, err := a.subscribe(20_000)
	if err != nil {
		return err
	}
	time.Sleep(min(3*time.Second, time.Until(a.until)/2))
	for range a.count {
		if err := p.write(wire.AppendCredit(nil, 0, 1)); err != nil {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil
}

// creditsOfCalls gives credit to calls, whose senders wait for as much as a message
// takes.
func creditsOfCalls(a *attacker) error {
	const calls = 300
	p, err := a.dial(a.over)
	if err != nil {
		return err
	}
	p.drain()
	if err := p.greet(wire.MinWindow, 1<<40); err != nil {
		return err
	}
	err = p.repeat(calls, func(b []byte) []byte {
		return p.open(b, "StreamingOutputCall", request{message: true, ends: true})
	})
	if err != nil {
		return err
	}
	time.Sleep(min(time.Second, time.Until(a.until)/2))
	call := uint64(0)
	return p.repeat(a.count, func(b []byte) []byte {
		call = (call + 1) % calls
		return wire.AppendCredit(b, 2*call+1, 1)
	})
}

func drains(a *attacker) error {
	p, err := a.enter(a.over)
	if err != nil {
		return err
	}
	err = p.repeat(5*a.count, func(b []byte) []byte { return p.open(b, "HalfDuplexCall", request{}) })
	if err != nil {
		return err
	}
	return p.repeat(a.count, func(b []byte) []byte { return wire.AppendDrain(b, 0) })
}

func (a *attacker) openAndReset(method string) error {
	p, err := a.enter(a.over)
	if err != nil {
		return err
	}
	return p.repeat(a.count, func(b []byte) []byte {
		b = p.open(b, method, request{})
		return wire.AppendReset(b, p.last, wire.ResetCancelled, "")
	})
}

// openAndResetLater resets calls after their handlers had time to start.
func openAndResetLater(a *attacker) error {
	const together = 500
	p, err := a.enter(a.over)
	if err != nil {
		return err
	}
	for range a.count / together {
		first := p.last + 2
		if p.last == 0 {
			first = 1
		}
		err := p.repeat(together, func(b []byte) []byte { return p.open(b, "HalfDuplexCall", request{}) })
		if err != nil {
			return err
		}
		time.Sleep(time.Millisecond)
		err = p.repeat(together, func(b []byte) []byte {
			b = wire.AppendReset(b, first, wire.ResetCancelled, "")
			first += 2
			return b
		})
		if err != nil {
			return err
		}
	}
	return nil
}
