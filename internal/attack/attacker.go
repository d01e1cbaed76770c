//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nearcall/nearcall/internal/wire"
)

// An attack is something that a peer may do to a server.
type attack struct {
	name   string
	what   string // what the attacker does, for the table
	before string // what it cost the engine that it was found on
	path   path   // that the attack and the honest client take

	full, short int // how often: what that means is the attack's affair
	run         func(*attacker) error
	lacks       func() string // what the system lacks for a defence, so that the attack is left out; nil for nothing

	asked   bool          // processor and latency are what the service takes for what it is asked, and not judged
	env     []string      // of the server, beside its own
	server  []string      // arguments of the server
	flaw    string        // that the server has
	release time.Duration // in which the server lets go, although the attacker stays; 0 for never
	stop    bool          // stop the server while the attacker is still there
	known   *excuse       // what is known and not mended; nil for nothing
}

// An excuse is what an attack may cost beyond the bounds.
type excuse struct {
	memory    int64   // of the server, in bytes, whatever the attacker paid for it
	each      int64   // the same, for each of the attack's count
	cpu       float64 // times the attacker's
	newcomers bool    // new clients may fail
	why       string
}

// A path is how a client reaches the server.
type path string

const (
	overTCP  path = "tcp"
	overUnix path = "unix"
	overShm  path = "shm"
)

func (a addresses) target(p path) string {
	switch p {
	case overUnix:
		return a.Unix
	case overShm:
		return a.Shm
	}
	return a.TCP
}

// An attacker makes one attack.
type attacker struct {
	at    addresses
	count int
	until time.Time // when it has to be done
	sent  atomic.Int64
	held  []any // what stays open until the attacker exits
}

// A report is the attacker's answer when it has done what it does.
type report struct {
	Sent  int64  // bytes
	Note  string // what cut it short; empty for nothing
	Error string // it could not be made; empty if it could
}

// attackerMain makes an attack when it is told to, and keeps its connections
// until its input ends.
func attackerMain(args []string) error {
	if len(args) != 4 {
		return errors.New("it needs the attack, the count, the time limit and the addresses")
	}
	all := slices.Concat(attacks, flaws)
	i := slices.IndexFunc(all, func(a *attack) bool { return a.name == args[0] })
	if i < 0 {
		return errors.New("no such attack")
	}
	a := &attacker{}
	var err error
	if a.count, err = strconv.Atoi(args[1]); err != nil {
		return err
	}
	limit, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(args[3]), &a.at); err != nil {
		return err
	}
	return obey(struct{}{}, func(command string) any {
		a.until = time.Now().Add(limit)
		if command == "probe" {
			if err := a.probe(all[i].path); err != nil {
				return report{Error: err.Error()}
			}
			a.sent.Store(0)
			return report{}
		}
		return a.report(all[i].run(a))
	})
}

// report tells an attack that was cut short from one that could not be made: a
// server may hang up, refuse and take its time, all of which it does to defend
// itself.
func (a *attacker) report(err error) report {
	r := report{Sent: a.sent.Load()}
	var cut *net.OpError
	switch {
	case err == nil:
	case errors.Is(err, os.ErrDeadlineExceeded):
		r.Note = "the server did not take all of it in time"
	case errors.As(err, &cut), errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNRESET), errors.Is(err, errDeclined):
		r.Note = err.Error()
	default:
		r.Error = err.Error()
	}
	return r
}

// probe makes an ordinary call with the attacks' own means.
func (a *attacker) probe(over path) error {
	p, err := a.dial(over)
	if err != nil {
		return err
	}
	defer p.conn.Close()
	if err := p.greet(wire.MinWindow, wire.MinWindow); err != nil {
		return err
	}
	if err := p.call("EmptyCall", nil); err != nil {
		return fmt.Errorf("an ordinary call by the attacker's own means: %w", err)
	}
	return nil
}

// dial connects, and says nothing yet.
func (a *attacker) dial(over path) (*peer, error) {
	if over == overShm {
		r, err := dialRing(a.at.Shm, a.until)
		if err != nil {
			return nil, err
		}
		a.hold(r)
		return &peer{conn: r, sent: &a.sent}, nil
	}
	conn, err := dialSocket(a.at.target(over), a.until)
	if err != nil {
		return nil, err
	}
	a.hold(conn)
	return &peer{conn: conn, sent: &a.sent}, nil
}

// enter connects, greets with the least windows and reads whatever comes.
func (a *attacker) enter(over path) (*peer, error) {
	p, err := a.dial(over)
	if err != nil {
		return nil, err
	}
	p.drain()
	return p, p.greet(wire.MinWindow, wire.MinWindow)
}

func (a *attacker) hold(what any) { a.held = append(a.held, what) }

// repeat calls step until it was called n times, and now and then sends what
// step has appended.
func (p *peer) repeat(n int, step func(b []byte) []byte) error {
	const enough = 60 << 10
	b := make([]byte, 0, 2*enough)
	for range n {
		if b = step(b); len(b) > enough {
			if err := p.write(b); err != nil {
				return err
			}
			b = b[:0]
		}
	}
	return p.write(b)
}
