//go:build linux

package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	q "github.com/quic-go/quic-go"

	"github.com/nearcall/nearcall/internal/testing/attack"
	"github.com/nearcall/nearcall/internal/wire"
)

// Attacks with datagrams, handshakes and connections.
var connectionAttacks = []*attack.Attack{
	{
		Name: "noise", Path: overQUIC, Full: 400_000, Short: 50_000,
		What:   "%s datagrams of random bytes",
		Before: "not measured",
		Run:    noise,
	},
	{
		Name: "handshakes-half", Path: overQUIC, Full: 2_000, Short: 300,
		What:   "%s handshakes that stop after the client's first packets",
		Before: "not measured",
		Run:    halfHandshakes,
	},
	{
		Name: "handshakes", Path: overQUIC, Full: 1_000, Short: 100,
		What:   "%s connections that end after the handshake",
		Before: "not measured",
		Run: func(a *attack.Attacker) error {
			return connections(a, func(p *peer) error { return p.conn.CloseWithError(0, "") })
		},
	},
	{
		Name: "connections-silent", Path: overQUIC, Full: 1_000, Short: 100,
		What:   "%s connections that do not say HELLO",
		Before: "not measured",
		Known:  aConnection,
		Run:    func(a *attack.Attacker) error { return connections(a, func(*peer) error { return nil }) },
	},
	{
		Name: "connections-idle", Path: overQUIC, Full: 1_000, Short: 100,
		What:   "%s connections that say HELLO and no more",
		Before: "not measured",
		Known:  aConnection,
		Run:    func(a *attack.Attacker) error { return connections(a, (*peer).greet) },
	},
	{
		Name: "control", Path: overQUIC, Full: 200_000, Short: 20_000,
		What:   "%s DRAINs with 1,000 calls open, and as many frames of an extension",
		Before: "1.3 s of CPU",
		Run:    control,
	},
}

// aConnection is what each connection of an attack may cost.
var aConnection = &attack.Excuse{
	Each: 96 << 10,
	Why:  "a connection takes quic-go some 80 kB; how many there are is for the listener to limit",
}

// noise sends datagrams that look like packets of either kind.
func noise(a *attack.Attacker) error {
	s, err := open(a)
	if err != nil {
		return err
	}
	to, err := server(a)
	if err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(1, 1))
	prepared := make([][]byte, 100)
	for i := range prepared {
		prepared[i] = make([]byte, 1+r.IntN(1400))
		for j := range prepared[i] {
			prepared[i][j] = byte(r.Uint32())
		}
	}
	for i := range a.Count {
		if _, err := s.WriteTo(prepared[i%len(prepared)], to); err != nil {
			return err
		}
	}
	return nil
}

// A deafSocket receives nothing.
type deafSocket struct {
	socket
	closed chan struct{}
	once   *sync.Once
}

// ReadFrom implements [net.PacketConn].
func (s deafSocket) ReadFrom([]byte) (int, net.Addr, error) {
	<-s.closed
	return 0, nil, net.ErrClosed
}

// SetReadDeadline implements [net.PacketConn]. It ends ReadFrom: quic-go calls it when it closes.
func (s deafSocket) SetReadDeadline(time.Time) error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

// halfHandshakes sends the first flight of many handshakes, each from its own address.
func halfHandshakes(a *attack.Attacker) error {
	to, err := server(a)
	if err != nil {
		return err
	}
	return together(a, 50, func() error {
		s, err := open(a)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		tr := &q.Transport{Conn: deafSocket{s, make(chan struct{}), new(sync.Once)}}
		_, err = tr.Dial(ctx, to, clientTLS, settings(1<<10, 1<<10))
		_ = tr.Close()
		_ = s.Close()
		if !errors.Is(err, context.DeadlineExceeded) {
			return errors.New("a handshake was complete although the client was deaf")
		}
		return nil
	})
}

// together calls the function do a.Count times, from several goroutines. It returns one of the
// errors.
func together(a *attack.Attacker, goroutines int, do func() error) error {
	var all sync.WaitGroup
	errs := make([]error, goroutines)
	for i := range goroutines {
		all.Go(func() {
			for range a.Count / goroutines {
				if errs[i] = do(); errs[i] != nil {
					return
				}
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// connections dials many connections, and calls the function then for each.
func connections(a *attack.Attacker, then func(*peer) error) error {
	return together(a, 10, func() error {
		p, err := dial(a, settings(1<<10, 1<<10))
		if err != nil {
			return err
		}
		return then(p)
	})
}

// control sends frames on the control stream while calls are open.
func control(a *attack.Attacker) error {
	p, err := enter(a, settings(1<<10, 1<<10))
	if err != nil {
		return err
	}
	for range 1000 {
		if _, err := p.call(a, head("HalfDuplexCall", nil)); err != nil {
			return err
		}
	}
	const each = 100
	extension := []byte{2, 0, 0x40, 0}
	b := slices.Concat(wire.AppendDrain(nil, 1000), extension)
	b = slices.Concat(slices.Repeat([][]byte{b}, each)...)
	_ = p.control.SetWriteDeadline(a.Until)
	for range a.Count / each {
		if _, err := p.control.Write(b); err != nil {
			if _, ended := errors.AsType[*q.ApplicationError](err); ended {
				return nil // by the server: the second DRAIN says nothing new
			}
			return err
		}
	}
	return nil
}
