//go:build linux

package attack

import (
	"errors"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearcall/nearcall/internal/wire"
)

// Attacks over shared memory. The server must trust the attacker's user for them: other
// users cannot get this far.
var shmAttacks = []*Attack{
	{
		Name: "shm-holes", Path: overShm, Full: 8, Short: 4,
		What:   "%s clients that send messages of 4 MiB in slabs that have no pages",
		Before: "1.6 GB",
		Run:    holes,
	},
	{
		Name: "shm-same", Path: overShm, Full: 200, Short: 40,
		What:   "%s calls whose handlers are sent the same message of 4 MiB, and return it to nobody",
		Before: "not measured",
		Known:  &Excuse{Each: 10 << 20, CPU: 200, Why: sameUser},
		Run:    same,
	},
	{
		Name: "shm-dead", Path: overShm, Full: 5, Short: 2,
		What:   "%s clients that exit and leave their end of the socket in the other's",
		Before: "331 MB, for ever",
		Run:    dead,
	},
	{
		Name: "shm-punched", Path: overShm, Full: 20_000, Short: 2_000,
		What:   "%s holes punched in the memory of a connection while it is used",
		Before: "not measured",
		Run:    punched,
	},
	{
		Name: "shm-places-empty", Path: overShm, Full: 20, Short: 5,
		What:   "%s unread calls full of large messages of size 0",
		Before: "282 MB",
		Run:    emptyPlaces,
	},
	{
		Name: "shm-wake-ups", Path: overShm, Full: 1_000_000, Short: 50_000,
		What:   "%s writes of 64 wake-ups",
		Before: "p99 of 63 ms",
		Run:    wakeUps,
	},
	{
		Name: "shm-hoard", Path: overShm, Full: 17, Short: 17,
		What:   "%s clients that take large replies and return nothing",
		Before: "all of MaxSharedMemory: every new client fails",
		asked:  true,
		Known:  &Excuse{Memory: 1792 << 20, Why: "MaxSharedMemory allows 1 GiB, and the replies are what the clients asked for"},
		Run:    hoard,
	},
	{
		Name: "shm-handshakes", Path: overShm, Full: 2_000, Short: 300,
		What:   "%s handshakes that stop halfway",
		Before: "6 descriptors each, for 120 s",
		Run:    handshakes,
	},
	{
		Name: "shm-offers", Path: overShm, Full: 30_000, Short: 1_000,
		What:   "%s clients that make an offer and leave",
		Before: "196 MB, 15,279 descriptors",
		Run:    (*Attacker).visit,
	},
	{
		Name: "shm-idle", Path: overShm, Full: 2_100, Short: 200,
		What:   "%s connections over shared memory that say HELLO and no more",
		Before: "605 MB",
		Known:  &Excuse{Each: 128 << 10, Newcomers: true, Why: "MaxSharedMemory has room for some 2,000 connections; how many one client may have is for the listener to limit"},
		Run: func(a *Attacker) error {
			for range a.Count {
				if _, _, err := a.attach(wire.MinWindow); err != nil {
					return err
				}
			}
			return nil
		},
	},
}

// sameUser is the excuse of attacks over shared memory that are bounded, but costly.
const sameUser = "a message in shared memory costs its sender no bytes; only processes of the server's user can do this"

// attach connects over shared memory, greets, and reads and discards everything.
func (a *Attacker) attach(window int64) (*peer, *ring, error) {
	p, err := a.dial(overShm)
	if err != nil {
		return nil, nil, err
	}
	p.drain()
	return p, p.conn.(*ring), p.greet(window, window)
}

// place appends a message of a call that is at offset at of the client's slabs.
func place(b []byte, stream uint64, flags wire.Kind, size, at uint64) []byte {
	return frame(b, wire.KindStream|wire.FlagMessage|wire.FlagPlace|flags, stream, uint62(uint62(nil, size), at)...)
}

func holes(a *Attacker) error {
	const message = 4 << 20
	var cut error
	for range a.Count {
		p, r, err := a.attach(wire.MinWindow)
		if err != nil {
			return err
		}
		at := int64(0)
		err = p.repeat(int(r.slabs/message), func(b []byte) []byte {
			b = place(p.open(b, "UnaryCall", request{}), p.last, wire.FlagEnd, message, uint64(at))
			at += message
			return b
		})
		if err != nil {
			cut = err
		}
	}
	return cut
}

// same sends one message in the client's memory to one handler after the other. None of
// them can return it, as there is no credit, so each keeps a copy.
func same(a *Attacker) error {
	const message = 4<<20 - 16
	p, err := a.dial(overShm)
	if err != nil {
		return err
	}
	r := p.conn.(*ring)
	// A payload (field 3) with a body (field 2).
	payload := append(uint62([]byte{3<<3 | 2}, message-5), 2<<3|2)
	payload = uint62(payload, message-5-5)
	if err := r.fill(4 << 20); err != nil {
		return err
	}
	if _, err := unix.Pwrite(r.memory, payload, r.slabsAt); err != nil {
		return err
	}
	if err := p.greet(wire.MinWindow, wire.MinWindow); err != nil {
		return err
	}
	for range a.Count {
		b := place(p.open(nil, "FullDuplexCall", request{}), p.last, 0, message, 0)
		if err := p.write(b); err != nil {
			return err
		}
		if err := p.until(wire.KindReturn); err != nil {
			return err
		}
	}
	return nil
}

// dead sends the client's end of the data socket over the room socket, which the server
// reads only while it waits for room. The client then closes its own copy, but the socket
// stays open in the message.
func dead(a *Attacker) error {
	for range a.Count {
		p, r, err := a.attach(wire.MinWindow)
		if err != nil {
			return err
		}
		if err := p.write(p.open(nil, "HalfDuplexCall", request{})); err != nil {
			return err
		}
		if err := r.fill(r.slabs); err != nil {
			return err
		}
		file, err := r.data.File()
		if err != nil {
			return err
		}
		err = unix.Sendmsg(r.room, []byte{1}, unix.UnixRights(int(file.Fd())), nil, unix.MSG_DONTWAIT)
		if err != nil && !errors.Is(err, unix.EPERM) { // the server's socket may refuse descriptors
			return err
		}
		if err := errors.Join(file.Close(), r.Close()); err != nil {
			return err
		}
	}
	return nil
}

// punched frees the pages that the server writes replies to, while the server writes them.
func punched(a *Attacker) error {
	p, r, err := a.attach(1 << 40)
	if err != nil {
		return err
	}
	const free = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	for i := range a.Count {
		reply := uint64(1_000)
		if i%50 == 0 {
			reply = 64 << 10 // in a slab
		}
		b := p.open(nil, "UnaryCall", request{message: true, bytes: responseOf(reply), ends: true})
		if err := p.write(b); err != nil {
			return err
		}
		ring := unix.Fallocate(r.memory, free, controls, int64(len(r.theirs)-controls))
		slabs := unix.Fallocate(r.memory, free, r.slabsAt-r.slabs, r.slabs)
		if err := errors.Join(ring, slabs); err != nil && !errors.Is(err, unix.EPERM) {
			return err
		}
	}
	return nil
}

// responseOf encodes a request for a reply of size bytes.
func responseOf(size uint64) []byte { return uint62([]byte{2 << 3}, size) }

func emptyPlaces(a *Attacker) error {
	const window = 256 << 10
	p, _, err := a.attach(wire.MinWindow)
	if err != nil {
		return err
	}
	for range a.Count {
		if err := p.write(p.open(nil, "HalfDuplexCall", request{})); err != nil {
			return err
		}
		f := place(nil, p.last, 0, 0, 0)
		err := p.repeat(window/wire.MessageCost, func(b []byte) []byte { return append(b, f...) })
		if err != nil {
			return err
		}
	}
	return nil
}

// wakeUps sends wake-ups for nothing, and connects again when the server disconnects.
func wakeUps(a *Attacker) error {
	var many [64]byte
	var r *ring
	for range a.Count {
		if r == nil {
			var err error
			if _, r, err = a.attach(wire.MinWindow); err != nil {
				return err
			}
		}
		n, err := r.data.Write(many[:])
		a.Sent.Add(int64(n))
		var broken *net.OpError
		switch {
		case errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNRESET):
			a.held = a.held[:0]
			if err := r.Close(); err != nil {
				return err
			}
			r = nil
		case errors.As(err, &broken):
			return err
		}
	}
	return nil
}

func hoard(a *Attacker) error {
	for range a.Count {
		p, r, err := a.attach(1 << 40)
		if err != nil {
			return err
		}
		err = p.repeat(int(r.slabs/(4<<20)), func(b []byte) []byte {
			return p.open(b, "UnaryCall", request{message: true, bytes: responseOf(4<<20 - 100), ends: true})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// handshakes makes offers, and does not confirm the answers.
func handshakes(a *Attacker) error {
	for range a.Count {
		conn, err := dialSocket(a.at[overShm], a.Until)
		if err != nil {
			return err
		}
		a.Hold(conn)
		if err := offer(conn.(*net.UnixConn)); err != nil {
			return err
		}
		a.Sent.Add(int64(len(offerLine) + 3))
	}
	return nil
}

// visit connects clients that make an offer and leave, a batch at a time, and pauses between
// the batches so that the server accepts each of them.
func (a *Attacker) visit() error {
	const (
		some  = 500
		pause = 10 * time.Millisecond
	)
	conns := make([]net.Conn, 0, some)
	leave := func() {
		for _, conn := range conns {
			_ = conn.Close()
		}
		conns = conns[:0]
	}
	defer leave()
	for range a.Count {
		conn, err := dialSocket(a.at[overShm], a.Until)
		for errors.Is(err, syscall.EAGAIN) && time.Now().Before(a.Until) { // there is no room to wait in
			time.Sleep(time.Millisecond)
			conn, err = dialSocket(a.at[overShm], a.Until)
		}
		if err != nil {
			return err
		}
		conns = append(conns, conn)
		if err := offer(conn.(*net.UnixConn)); err != nil {
			return err
		}
		a.Sent.Add(int64(len(offerLine) + 3))
		if len(conns) == some {
			a.CountDescriptors()
			time.Sleep(pause)
			leave()
		}
	}
	return nil
}
