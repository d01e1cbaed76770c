//go:build linux

package attack

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

// An Attack is something that a peer can do to a server.
type Attack struct {
	Name   string
	What   string // what the attacker does, for the table; %s stands for the count
	Before string // what it cost the version of nearcall that it was found on
	Path   Path   // of both the attack and the honest client

	Full, Short int // the count, in the full and the short form; each attack defines what it counts
	Run         func(*Attacker) error
	Known       *Excuse // a known cost that was not fixed; nil for none

	lacks   func() string // why the system lacks a defence, so that the attack is left out; nil for attacks that need none
	asked   bool          // the cost is what the service does for any client that asks, so CPU and latency are not judged
	env     []string      // additional environment of the server
	server  []string      // arguments of the server
	flaw    string        // of the server; see flaws.go
	release time.Duration // how soon the server must free memory although the attacker stays; 0 for never
	stop    bool          // stop the server while the attacker is still connected
}

// An Excuse is what an attack may cost beyond the bounds.
type Excuse struct {
	Memory    int64   // of the server, in bytes, whatever the attacker pays
	Each      int64   // the same, for each of the attack's count
	CPU       float64 // times the attacker's
	Newcomers bool    // new clients may fail
	Why       string
}

// A Path is how a client reaches the server.
type Path string

const (
	overTCP  Path = "tcp"
	overUnix Path = "unix"
	overShm  Path = "shm"
	overWS   Path = "ws"
)

// addresses are the targets of a server.
type addresses map[Path]string

// An Attacker makes one attack.
type Attacker struct {
	Count int          // the attack's
	Until time.Time    // when it must be done
	Sent  atomic.Int64 // bytes; the attack counts them

	at   addresses
	over Path
	held []any // keeps connections open until the attacker exits

	descriptors int // the most that CountDescriptors saw
}

// Target returns the server's target over the attack's path.
func (a *Attacker) Target() string { return a.at[a.over] }

// CountDescriptors counts the attacker's descriptors. An attack that closes connections calls it while
// they are open: they might be gone when the harness looks.
func (a *Attacker) CountDescriptors() {
	a.descriptors = max(a.descriptors, descriptorsOf(os.Getpid()))
}

// Hold keeps what alive until the attacker exits.
func (a *Attacker) Hold(what any) { a.held = append(a.held, what) }

// A report is the attacker's answer after an attack.
type report struct {
	Sent        int64  // bytes
	Descriptors int    // the most that the attack has counted; 0 if it does not count them
	Note        string // why the attack was cut short; empty if it was not
	Error       string // why the attack could not be made; empty if it could
}

// attackerMain makes an attack when it is told to, and keeps its connections until its
// standard input ends.
func (p *Program) attackerMain(args []string) error {
	if len(args) != 4 {
		return errors.New("it needs the attack, the count, the time limit and the addresses")
	}
	all := slices.Concat(p.Attacks, flaws)
	i := slices.IndexFunc(all, func(a *Attack) bool { return a.Name == args[0] })
	if i < 0 {
		return errors.New("no such attack")
	}
	a := &Attacker{}
	var err error
	if a.Count, err = strconv.Atoi(args[1]); err != nil {
		return err
	}
	limit, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(args[3]), &a.at); err != nil {
		return err
	}
	a.over = all[i].Path
	return obey(struct{}{}, func(command string) any {
		a.Until = time.Now().Add(limit)
		if command == "probe" {
			if err := p.Probe(a); err != nil {
				return report{Error: err.Error()}
			}
			a.Sent.Store(0)
			return report{}
		}
		return p.report(a, all[i].Run(a))
	})
}

// report distinguishes an attack that was cut short from one that could not be made. A
// server that hangs up, refuses or is slow defends itself.
func (p *Program) report(a *Attacker, err error) report {
	r := report{Sent: a.Sent.Load(), Descriptors: a.descriptors}
	var cut *net.OpError
	switch {
	case err == nil:
	case errors.Is(err, os.ErrDeadlineExceeded):
		r.Note = "the server did not take all of it in time"
	case errors.As(err, &cut), errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNRESET), errors.Is(err, errDeclined), p.Declines != nil && p.Declines(err):
		r.Note = err.Error()
	default:
		r.Error = err.Error()
	}
	return r
}

// probe makes an ordinary call with the attacks' own protocol code.
func probe(a *Attacker) error {
	p, err := a.dial(a.over)
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

// dial connects without sending anything.
func (a *Attacker) dial(over Path) (*peer, error) {
	if over == overShm {
		r, err := dialRing(a.at[overShm], a.Until)
		if err != nil {
			return nil, err
		}
		a.Hold(r)
		return &peer{conn: r, sent: &a.Sent}, nil
	}
	if over == overWS {
		return a.upgrade(true)
	}
	conn, err := dialSocket(a.at[over], a.Until)
	if err != nil {
		return nil, err
	}
	a.Hold(conn)
	return &peer{conn: conn, sent: &a.Sent}, nil
}

// enter connects, greets with the smallest windows, and reads and discards everything.
func (a *Attacker) enter(over Path) (*peer, error) {
	p, err := a.dial(over)
	if err != nil {
		return nil, err
	}
	p.drain()
	return p, p.greet(wire.MinWindow, wire.MinWindow)
}

// repeat calls step n times, and writes what step has appended in large pieces.
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
