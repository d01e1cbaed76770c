//go:build linux

package attack

import (
	"time"

	"github.com/nearcall/nearcall/internal/wire"
)

// Attacks with many streams, and with frames that concern all of them.
var streamAttacks = []*Attack{
	{
		Name: "streams-unread", Path: overTCP, Full: 20_000, Short: 4_000,
		What:   "%s server streams, no credit given",
		Before: "8.5 GB",
		Known:  handlersBegin,
		Run: func(a *Attacker) error {
			_, err := a.subscribe(a.Count)
			return err
		},
	},
	{
		Name: "streams-unread-many", Path: overTCP, Full: 200, Short: 40,
		What:   "%s connections with 100 server streams each, no credit given",
		Before: "not measured",
		Known:  &Excuse{Each: 6 << 20, CPU: 50, Why: "a connection may have 2 MiB waiting for a peer that does not read; how many connections there are is for the listener to limit"},
		Run: func(a *Attacker) error {
			for range a.Count {
				if _, err := a.subscribe(100); err != nil {
					return err
				}
			}
			return nil
		},
	},
	{
		Name: "credits", Path: overTCP, Full: 676, Short: 100,
		What:   "20,000 such streams, then %s CREDITs of a byte for the connection",
		Before: "3.2 s of CPU",
		Run:    credits,
	},
	{
		Name: "credits-calls", Path: overTCP, Full: 4_000_000, Short: 500_000,
		What:   "%s CREDITs of a byte, for 300 server streams in turn that wait for it",
		Before: "2.7 s of CPU",
		Known:  &Excuse{CPU: 15, Why: "a frame takes the server some 100 ns, however small it is, and the attacker only writes prepared bytes"},
		Run:    creditsOfCalls,
	},
	{
		Name: "drains", Path: overTCP, Full: 20_000, Short: 2_000,
		What:   "%s DRAINs with five times as many calls open",
		Before: "118 s of CPU, unfinished after 206 s",
		Run:    drains,
	},
	{
		Name: "open-reset", Path: overTCP, Full: 1_000_000, Short: 100_000,
		What:   "%s calls opened and reset",
		Before: "7 s of CPU",
		Run:    func(a *Attacker) error { return a.openAndReset("HalfDuplexCall") },
	},
	{
		Name: "open-reset-later", Path: overTCP, Full: 1_000_000, Short: 50_000,
		What:   "%s calls opened, 500 at a time, and reset when their handlers run",
		Before: "not measured",
		Run:    openAndResetLater,
	},
	{
		Name: "open-reset-busy", Path: overTCP, Full: 1_000_000, Short: 100_000,
		What:   "%s calls opened and reset whose handlers take 2 s",
		Before: "645 MB",
		Known:  &Excuse{Memory: 48 << 20, Why: "1,000 handlers run, which take some 30 kB each"},
		Run:    func(a *Attacker) error { return a.openAndReset("StreamingInputCall") },
	},
	{
		Name: "streams-open", Path: overTCP, Full: 100_000, Short: 20_000,
		What:   "%s calls opened and left",
		Before: "not measured",
		Run: func(a *Attacker) error {
			p, err := a.enter(a.over)
			if err != nil {
				return err
			}
			return p.repeat(a.Count, func(b []byte) []byte { return p.open(b, "HalfDuplexCall", request{}) })
		},
	},
}

// handlersBegin excuses the handlers of the first 1,000 calls of a connection, which is as many as
// may run: on a busy machine they can take more than the floor.
var handlersBegin = &Excuse{CPU: 50, Why: "1,000 handlers begin, each in some 50 to 100 µs, and the attacker only writes prepared bytes"}

// subscribe opens n server streams on a connection with the smallest window for the
// connection and large windows for the streams.
func (a *Attacker) subscribe(n int) (*peer, error) {
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
func credits(a *Attacker) error {
	p, err := a.subscribe(20_000)
	if err != nil {
		return err
	}
	time.Sleep(min(3*time.Second, time.Until(a.Until)/2))
	for range a.Count {
		if err := p.write(wire.AppendCredit(nil, 0, 1)); err != nil {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil
}

// creditsOfCalls gives credit to calls, whose senders wait for as much as a message
// takes.
func creditsOfCalls(a *Attacker) error {
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
	time.Sleep(min(time.Second, time.Until(a.Until)/2))
	call := uint64(0)
	return p.repeat(a.Count, func(b []byte) []byte {
		call = (call + 1) % calls
		return wire.AppendCredit(b, 2*call+1, 1)
	})
}

func drains(a *Attacker) error {
	p, err := a.enter(a.over)
	if err != nil {
		return err
	}
	err = p.repeat(5*a.Count, func(b []byte) []byte { return p.open(b, "HalfDuplexCall", request{}) })
	if err != nil {
		return err
	}
	return p.repeat(a.Count, func(b []byte) []byte { return wire.AppendDrain(b, 0) })
}

func (a *Attacker) openAndReset(method string) error {
	p, err := a.enter(a.over)
	if err != nil {
		return err
	}
	return p.repeat(a.Count, func(b []byte) []byte {
		b = p.open(b, method, request{})
		return wire.AppendReset(b, p.last, wire.ResetCancelled, "")
	})
}

// openAndResetLater resets calls after their handlers had time to start.
func openAndResetLater(a *Attacker) error {
	const together = 500
	p, err := a.enter(a.over)
	if err != nil {
		return err
	}
	for range a.Count / together {
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
