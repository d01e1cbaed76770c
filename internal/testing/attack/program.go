//go:build linux

// Package attack measures what attacks on a nearcall server cost the server and what they cost the
// attacker. For each attack it starts a server with default options and the attacker, each in its own process,
// and an honest client calls throughout. A server that uses more than 3 GiB is killed.
//
// Each attack is a test, which fails if the attack exceeds its bounds (see bounds.go) without an excuse,
// or cannot be made. go test makes smaller attacks and judges no times, as the machine may be busy. With
// -full it makes the attacks one at a time, judges times too, and prints a table.
package attack

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/leak"
)

var (
	full  = flag.Bool("full", false, "make attacks in full, judge times, and print a table of those that were made")
	write = flag.Bool("write", false, "with -full, write the table into docs/results")
)

// A Program makes attacks. A test binary is also its own server and attacker.
type Program struct {
	Attacks []*Attack
	Table   string // the file of its table

	Listen func(dir string) map[Path]string // returns the targets that a server listens on; dir is its own
	Server []nearcall.ServerOption
	Client []nearcall.DialOption

	// Forget is how long a server may keep what it had for an attacker that has vanished, because
	// it cannot know. If it is 0, the server learns it at once.
	Forget time.Duration

	// Probe makes an ordinary call with the attacks' own protocol code. It shows that they still
	// follow the protocol: otherwise the server would seem to withstand every attack.
	Probe func(*Attacker) error

	// Declines reports whether a server has said no with an error of the attack, apart from
	// those of sockets. If it is nil, none does.
	Declines func(error) bool

	flaws []*Attack // on servers that have flaws on purpose
}

// Main is for TestMain: it runs the tests, or in a child process the child's part.
func (p *Program) Main(m *testing.M) {
	if len(os.Args) > 2 {
		role, ok := map[string]func(a *Attack, args []string) error{
			"server":   p.serve,
			"attacker": p.attack,
		}[os.Args[1]]
		if ok {
			if err := role(p.find(os.Args[2]), os.Args[3:]); err != nil {
				fmt.Fprintf(os.Stderr, "attack %s: %v\n", os.Args[1], err)
				os.Exit(1)
			}
			return
		}
	}
	leak.Main(m)
}

func (p *Program) find(name string) *Attack {
	for _, a := range slices.Concat(p.Attacks, p.flaws) {
		if a.Name == name {
			return a
		}
	}
	panic("no attack " + name)
}

// Test makes each attack in a subtest of its name.
func (p *Program) Test(t *testing.T) {
	for _, a := range p.Attacks {
		if p.find(a.Name) != a || a.Full == 0 || a.Short == 0 || a.Run == nil || a.Before == "" || strings.Count(a.What, "%") > 1 {
			t.Errorf("%s is there twice, or lacks something", a.Name)
		}
	}
	if testing.Short() {
		t.Skip("the attacks take half a minute")
	}
	withoutRace(t)
	turns := make(chan struct{}, 2*runtime.GOMAXPROCS(0)) // most of the time each waits
	var results []*result
	for _, a := range p.Attacks {
		r := &result{attack: a}
		results = append(results, r)
		t.Run(a.Name, func(t *testing.T) {
			if !*full {
				t.Parallel()
				turns <- struct{}{}
				defer func() { <-turns }()
			}
			*r = *p.make(t.Context(), a)
			t.Log(r)
			switch {
			case r.leftOut != "":
				t.Skip(r.leftOut)
			case r.notMade != "", len(r.beyond) > 0:
				t.Error(r.verdict())
			}
		})
	}
	if !*full {
		return
	}
	results = slices.DeleteFunc(results, func(r *result) bool { return !r.made() })
	printTable(os.Stdout, results)
	if *write {
		if err := writeCSV(p.Table, results); err != nil {
			t.Error(err)
		}
	}
}

// make makes an attack and judges it, or says why not.
func (p *Program) make(ctx context.Context, a *Attack) *result {
	if a.lacks != nil {
		if why := a.lacks(); why != "" {
			return &result{attack: a, leftOut: why}
		}
	}
	r, err := judged(func() (*result, error) { return p.try(ctx, a, *full) }, *full)
	if err != nil {
		return &result{attack: a, notMade: err.Error()}
	}
	return r
}

// judged makes an attack and judges it. If the attack exceeds only time bounds, judged makes it
// again.
func judged(try func() (*result, error), full bool) (*result, error) {
	for n := 1; ; n++ {
		r, err := try()
		if err != nil {
			return nil, err
		}
		judge(r, full)
		if n == tries || !r.again() {
			return r, nil
		}
	}
}

// executable is the program of the child processes.
var executable = os.Args[0]

// withoutRace makes a program for the child processes if this one has the race detector, which multiplies
// the cost in memory and time.
func withoutRace(t *testing.T) {
	info, ok := debug.ReadBuildInfo()
	if !ok || !slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		return
	}
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("the program cannot be built: ", err)
	}
	executable = filepath.Join(t.TempDir(), "attack")
	if out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-race=false", "-vet=off", "-o", executable).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Cleanup(func() { executable = os.Args[0] })
}
