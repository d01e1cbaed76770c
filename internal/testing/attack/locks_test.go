//go:build linux

package attack

import (
	"fmt"
	"net"
	"time"

	"github.com/nearcall/nearcall/internal/testing/blockedmem"
	"github.com/nearcall/nearcall/internal/wire"
)

// lockAttacks hold the system's lock of the file behind a connection's shared memory. System
// calls that allocate or free its pages wait for the lock, and no signal interrupts them.
var lockAttacks = []*Attack{
	{
		Name: "shm-locked-new", Path: overShm, Full: 300, Short: 60,
		What:   "%s new clients that lock the memory that they were sent, and the server is stopped",
		Before: "no other client gets shared memory, and Stop does not return",
		stop:   true,
		lacks:  canLock,
		Run:    lockedNew,
	},
	{
		Name: "shm-locked", Path: overShm, Full: 200, Short: 30,
		What:   "%s clients that lock it when they have got a large reply, and the server is stopped",
		Before: "a thread for each, for as long as they like",
		stop:   true,
		asked:  true,
		lacks:  canLock,
		Known:  &Excuse{Each: 320 << 10, Why: "a connection over shared memory takes some 60 kB of itself, and more when it is used"},
		Run:    locked,
	},
}

// canLock returns why the attacker cannot keep a lock, empty if it can.
func canLock() string {
	m, err := blockedmem.New()
	if err != nil {
		return fmt.Sprintf("this user cannot keep a file's lock without FUSE: %v", err)
	}
	m.Close()
	return ""
}

// lockedNew takes the lock before the server has written to the memory.
func lockedNew(a *Attacker) error {
	m, err := blockedmem.New()
	if err != nil {
		return err
	}
	for range a.Count {
		conn, err := dialSocket(a.at[overShm], a.Until)
		if err != nil {
			return err
		}
		a.Hold(conn)
		r := &ring{data: conn.(*net.UnixConn), until: a.Until}
		if err := offer(r.data); err != nil {
			return err
		}
		if err := r.open(); err != nil {
			return err
		}
		if _, err := m.Lock(r.memory, 0); err != nil {
			return err
		}
		if _, err := conn.Write([]byte{'+'}); err != nil {
			return err
		}
		a.Sent.Add(int64(len(offerLine) + 4))
	}
	return nil
}

// locked takes the lock when a reply has arrived in a slab, and returns the slab. Some time
// later the server frees the slab's pages.
func locked(a *Attacker) error {
	const later = 6 * time.Second
	m, err := blockedmem.New()
	if err != nil {
		return err
	}
	for range a.Count {
		p, err := a.dial(overShm)
		if err != nil {
			return err
		}
		if err := p.greet(1<<40, 1<<40); err != nil {
			return err
		}
		if err := p.write(p.open(nil, "UnaryCall", request{message: true, bytes: responseOf(60 << 10), ends: true})); err != nil {
			return err
		}
		placed := func(f wire.Frame) (bool, error) { return f.Kind.Stream() && f.Kind&wire.FlagPlace != 0, nil }
		if err := p.frames(placed); err != nil {
			return err
		}
		if _, err := m.Lock(p.conn.(*ring).memory, 0); err != nil {
			return err
		}
		if err := p.write(frame(nil, wire.KindReturn, 0, 0)); err != nil {
			return err
		}
	}
	time.Sleep(later)
	return nil
}
