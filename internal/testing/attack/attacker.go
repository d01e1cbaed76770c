//go:build linux

package attack

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nearcall/nearcall"
)

// An Attack is something that a peer can do to a server.
type Attack struct {
	Name   string
	What   string // what the attacker does, for the table; %s stands for the count
	Before string // what it cost the version of nearcall that it was found on
	Path   Path   // of both the attack and the honest client

	Full, Short int // the count, with -full and without; each attack defines what it counts
	Run         func(*Attacker) error
	Known       *Excuse // a known cost that was not fixed; nil for none

	lacks   func() string           // why the system lacks a defence, so that the attack is left out; nil for attacks that need none
	asked   bool                    // the cost is what the service does for any client that asks, so CPU and latency are not judged
	env     []string                // additional environment of the server
	server  []nearcall.ServerOption // of the server, beside the Program's
	release time.Duration           // how soon the server must free memory although the attacker stays; 0 for never
	stop    bool                    // stop the server while the attacker is still connected
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

// attack is the attacker's process. It makes an attack when it is told to, and keeps its connections until
// its standard input ends.
func (p *Program) attack(at *Attack, args []string) error {
	if len(args) != 3 {
		return errors.New("it needs the count, the time limit and the addresses")
	}
	a := &Attacker{over: at.Path}
	var err error
	if a.Count, err = strconv.Atoi(args[0]); err != nil {
		return err
	}
	limit, err := time.ParseDuration(args[1])
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(args[2]), &a.at); err != nil {
		return err
	}
	return obey(struct{}{}, func(command string) any {
		a.Until = time.Now().Add(limit)
		if command == "probe" {
			if err := p.Probe(a); err != nil {
				return report{Error: err.Error()}
			}
			a.Sent.Store(0)
			return report{}
		}
		return p.report(a, at.Run(a))
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
	case errors.As(err, &cut), errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNRESET), p.Declines != nil && p.Declines(err):
		r.Note = err.Error()
	default:
		r.Error = err.Error()
	}
	return r
}
