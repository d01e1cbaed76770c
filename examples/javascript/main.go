package main

import (
	"context"
	"fmt"
	"os"
	"time"
)

// patience is the time limit of the program.
const patience = time.Minute

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
