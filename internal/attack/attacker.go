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
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nearcall/nearcall/internal/wire"
)

// An attack is something that a peer can do to a server.
type attack struct {
	name   string
	what   string // what the attacker does, for the table
	before string // what it cost the version of nearcall that it was found on
	path   path   // of both the attack and the honest client

	full, short int // the count, in the full and the short form; each attack defines what it counts
	run         func(*attacker) error
	lacks       func() string // why the system lacks a defence, so that the attack is left out; nil for attacks that need none

	asked   bool          // the cost is what the service does for any client that asks, so CPU and latency are not judged
	env     []string      // additional environment of the server
	server  []string      // arguments of the server
	flaw    string        // of the server; see flaws.go
	release time.Duration // how soon the server must free memory although the attacker stays; 0 for never
	stop    bool          // stop the server while the attacker is still connected
	known   *excuse       // a known cost that was not fixed; nil for none
}

// An excuse is what an attack may cost beyond the bounds.
type excuse struct {
	memory    int64   // of the server, in bytes, whatever the attacker pays
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
	overWS   path = "ws"
)

func (a addresses) target(p path) string {
	switch p {
	case overUnix:
		return a.Unix
	case overShm:
		return a.Shm
	case overWS:
		return "ws:" + strings.Replace(a.TCP, "tcp:", "//", 1) + "/calls"
	}
	return a.TCP
}

// An attacker makes one attack.
type attacker struct {
	at    addresses
	over  path
	count int
	until time.Time // when it must be done
	sent  atomic.Int64
	held  []any // keeps connections open until the attacker exits

	descriptors int // the most that countDescriptors saw
}

// countDescriptors counts the attacker's descriptors. An attack that closes connections calls it while
// they are open: they might be gone when the harness looks.
func (a *attacker) countDescriptors() {
	a.descriptors = max(a.descriptors, descriptorsOf(os.Getpid()))
}

// A report is the attacker's answer after an attack.
type report struct {
	Sent        int64  // bytes
	Descriptors int    // the most that the attack has counted; 0 if it does not count them
	Note        string // why the attack was cut short; empty if it was not
	Error       string // why the attack could not be made; empty if it could
}

// attackerMain makes an attack when it is told to, and keeps its connections until its
// standard input ends.
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
	a.over = all[i].path
	return obey(struct{}{}, func(command string) any {
		a.until = time.Now().Add(limit)
		if command == "probe" {
			if err := a.probe(); err != nil {
				return report{Error: err.Error()}
			}
			a.sent.Store(0)
			return report{}
		}
		return a.report(all[i].run(a))
	})
}

// report distinguishes an attack that was cut short from one that could not be made. A
// server that hangs up, refuses or is slow defends itself.
func (a *attacker) report(err error) report {
	r := report{Sent: a.sent.Load(), Descriptors: a.descriptors}
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

// probe makes an ordinary call with the attacks' own protocol code.
func (a *attacker) probe() error {
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
func (a *attacker) dial(over path) (*peer, error) {
	if over == overShm {
		r, err := dialRing(a.at.Shm, a.until)
		if err != nil {
			return nil, err
		}
		a.hold(r)
		return &peer{conn: r, sent: &a.sent}, nil
	}
	if over == overWS {
		return a.upgrade(true)
	}
	conn, err := dialSocket(a.at.target(over), a.until)
	if err != nil {
		return nil, err
	}
	a.hold(conn)
	return &peer{conn: conn, sent: &a.sent}, nil
}

// enter connects, greets with the smallest windows, and reads and discards everything.
func (a *attacker) enter(over path) (*peer, error) {
	p, err := a.dial(over)
	if err != nil {
		return nil, err
	}
	p.drain()
	return p, p.greet(wire.MinWindow, wire.MinWindow)
}

func (a *attacker) hold(what any) { a.held = append(a.held, what) }

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
