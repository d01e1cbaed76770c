//go:build linux

// Package attack measures what attacks on a nearcall server cost the server and what they cost the
// attacker. For each attack it starts a server with default options, an honest client that calls
// throughout, and the attacker, each in its own process, and prints a table.
//
// The exit status is 1 if an attack exceeds its bounds (see bounds.go) without an excuse,
// or cannot be made. An attack that exceeds only time bounds is made up to three times. A server
// that uses more than 3 GiB is killed.
package attack

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/nearcall/nearcall"
)

type options struct {
	only    *regexp.Regexp
	short   bool
	flaws   bool   // run the flaws instead of the attacks
	csv     string // the directory to write the table into; empty for none
	verbose bool
}

// A Program is a command that makes attacks.
type Program struct {
	Attacks []*Attack
	Table   string // the name of the file of its table, without .csv

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
}

// Main runs the command with the arguments of the process, or what the command does in its child
// processes.
func (p *Program) Main() {
	if role, ok := p.role(); ok {
		if err := role(os.Args[2:]); err != nil {
			fmt.Fprintf(os.Stderr, "attack %s: %v\n", os.Args[1], err)
			os.Exit(1)
		}
		return
	}
	var o options
	only := flag.String("only", "", "run the attacks whose names match this regular expression")
	list := flag.Bool("list", false, "list the attacks and exit")
	flag.BoolVar(&o.short, "short", false, "use smaller counts, a couple of seconds for each attack, and make as many at a time as there are processors")
	flag.BoolVar(&o.flaws, "flaws", false, "run servers that have flaws on purpose: each must be found beyond its bounds")
	flag.StringVar(&o.csv, "csv", "", "write the table into a file of this directory")
	flag.BoolVar(&o.verbose, "v", false, "print all that was measured")
	flag.Parse()
	var err error
	if o.only, err = regexp.Compile(*only); err != nil {
		fmt.Fprintln(os.Stderr, "attack: -only:", err)
		os.Exit(2)
	}
	if *list {
		printList(os.Stdout, p.selected(o))
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err = p.run(ctx, os.Stdout, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "attack:", err)
		os.Exit(1)
	}
}

// role returns what this process does if it is a child process.
func (p *Program) role() (role func(args []string) error, ok bool) {
	if len(os.Args) < 2 {
		return nil, false
	}
	role, ok = map[string]func(args []string) error{
		"server":   p.serverMain,
		"honest":   p.honestMain,
		"attacker": p.attackerMain,
	}[os.Args[1]]
	return role, ok
}

func (p *Program) selected(o options) []*Attack {
	from := p.Attacks
	if o.flaws {
		from = flaws
	}
	var chosen []*Attack
	for _, a := range from {
		if o.only.MatchString(a.Name) {
			chosen = append(chosen, a)
		}
	}
	return chosen
}

// run makes the attacks and prints the results. It fails if an attack exceeds its bounds or
// cannot be made.
func (p *Program) run(ctx context.Context, out io.Writer, o options) error {
	chosen := p.selected(o)
	if len(chosen) == 0 {
		return errors.New("no attack has a name that matches; -list shows the names")
	}
	atOnce := 1
	if o.short { // latency is not judged then, and most of the time each attack waits
		atOnce = runtime.GOMAXPROCS(0)
	}
	results := make([]*result, len(chosen))
	var all sync.WaitGroup
	var printing sync.Mutex
	turns := make(chan struct{}, atOnce)
	for i, a := range chosen {
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			r := p.attack(ctx, a, o)
			results[i] = r
			printing.Lock()
			defer printing.Unlock()
			if ctx.Err() == nil {
				printProgress(out, r, o.verbose && r.leftOut == "" && r.notMade == "")
			}
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	fmt.Fprintln(out)
	printTable(out, results)
	if o.csv != "" {
		if err := writeCSV(filepath.Join(o.csv, p.Table+".csv"), results); err != nil {
			return err
		}
	}
	return failed(results)
}

// attack makes an attack and judges it, or says why not.
func (p *Program) attack(ctx context.Context, a *Attack, o options) *result {
	r := &result{attack: a}
	if a.lacks != nil {
		r.leftOut = a.lacks()
	}
	if r.leftOut != "" {
		return r
	}
	r, err := judged(func() (*result, error) { return try(ctx, a, p.Forget, o.short) }, o)
	if err != nil {
		return &result{attack: a, notMade: err.Error()}
	}
	return r
}

// judged makes an attack and judges it. If the attack exceeds only time bounds, judged makes it
// again. A flaw gets one try, because it must be found.
func judged(try func() (*result, error), o options) (*result, error) {
	for n := 1; ; n++ {
		r, err := try()
		if err != nil {
			return nil, err
		}
		judge(r, o.short)
		if n == tries || o.flaws || !r.again() {
			return r, nil
		}
	}
}

// failed returns an error if an attack exceeds its bounds or could not be made.
func failed(results []*result) error {
	beyond, notMade := 0, 0
	for _, r := range results {
		if r.notMade != "" {
			notMade++
		}
		if len(r.beyond) > 0 {
			beyond++
		}
	}
	if beyond > 0 || notMade > 0 {
		return fmt.Errorf("of %d attacks %d are beyond their bounds and %d could not be made", len(results), beyond, notMade)
	}
	return nil
}
