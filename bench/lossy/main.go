// Lossy measures small calls beside a bulk stream over a link that has a delay, loses
// packets and has a limited rate: nearcall over QUIC, and grpc-go and nearcall over TCP with
// TLS, with each congestion control of the kernel. Both streams and calls use one
// connection.
//
//	go run .                                    calls beside an upload and beside a download
//	go run . -loss 0.1 -delay 20ms -rate 20     another link
//	go run . -beside up,nothing -duration 30s
//	go run . -beside new                        calls that each are the first of a connection
//	go run . -stacks TCP -congestion cubic      a part
//	go run . -write FILE                        also put the tables between the file's markers
//
// The link is a pair of network namespaces, each with a process and a TUN device, and a
// relay between the devices. No packet leaves them, and nothing is left of them when lossy
// has ended. That needs Linux, a TUN device, and root or a user namespace.
//
// QUIC has the congestion control of quic-go, which is Reno.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	if beASide() {
		return
	}
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "lossy:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	p, file, err := parse(args)
	if err != nil {
		return err
	}
	for _, load := range p.loads {
		if file == "" {
			break
		}
		if _, err := placeIn(file, load); err != nil { // before anything is measured
			return err
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	results, err := p.run(ctx, os.Stderr)
	if err != nil {
		return err
	}
	for _, load := range p.loads {
		table := p.markdown(load, results)
		fmt.Printf("%s\n", table)
		if file == "" {
			continue
		}
		at, err := placeIn(file, load) // in the page with the tables before this one
		if err != nil {
			return err
		}
		if err := at.put(table); err != nil {
			return err
		}
	}
	return nil
}

// parse returns what the flags say, and the file to write to.
func parse(args []string) (p *plan, file string, err error) {
	flags := flag.NewFlagSet("lossy", flag.ExitOnError)
	delay := flags.Duration("delay", 50*time.Millisecond, "there and back on an empty link")
	loss := flags.Float64("loss", 1, "`percent` of the packets that are lost in each direction")
	rate := flags.Float64("rate", 100, "of the link in each direction, in `Mbit` a second")
	queue := flags.Duration("queue", 100*time.Millisecond, "of packets that wait for the link, by the time that it takes for them")
	beside := flags.String("beside", upload+","+download, "loads, with a comma between their `names`: up, down, nothing, or new for new connections")
	lasts := flags.Duration("duration", 10*time.Second, "of a measurement")
	calls := flags.Int("calls", 200, "small calls a second")
	match := flags.String("stacks", "", "stacks whose names match this regular `expression`; all by default")
	congestion := flags.String("congestion", "", "congestion controls of TCP, with a comma between their `names`; by default reno, cubic and bbr, as far as the kernel offers them")
	p = &plan{warm: 2 * time.Second}
	flags.Uint64Var(&p.seed, "seed", 1, "of the losses")
	flags.StringVar(&file, "write", "", "also write the tables to `file`, between its markers")
	_ = flags.Parse(args) // it exits if they are wrong
	if flags.NArg() > 0 {
		return nil, "", fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	kernel, err := offered()
	if err != nil {
		return nil, "", err
	}
	if err := p.chooseLink(*delay, *loss, *rate, *queue); err != nil {
		return nil, "", err
	}
	if err := p.chooseLoads(*beside, *lasts, *calls); err != nil {
		return nil, "", err
	}
	return p, file, p.chooseWays(*match, *congestion, kernel)
}
