// Command cmd runs the market of package actor in this process and traders in separate
// processes, which reach it over shared memory if the system supports it, and otherwise over
// a unix socket or TCP. The traders place random orders concurrently. Then it prints and
// compares the accounts of the traders, the feed and the book, and exits with 1 if they do
// not balance.
//
//	go run ./examples/actor/cmd
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"
)

// patience is the time limit of the program.
const patience = time.Minute

func main() {
	var (
		traders = flag.Int("traders", 4, "how many processes trade")
		orders  = flag.Int("orders", 5000, "how many orders each of them places")
		network = flag.String("network", "", "shm, unix or tcp; the first of them that this system has if empty")
		target  = flag.String("trade", "", "be a trader at this target, as the program starts them")
		seed    = flag.Uint64("seed", 1, "of a trader's orders")
	)
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var err error
	if *traders < 0 || *orders < 0 {
		err = errors.New("there are no fewer traders and orders than none")
	} else if *target != "" {
		err = trade(ctx, *target, *orders, *seed)
	} else {
		err = run(ctx, *network, *traders, *orders)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
