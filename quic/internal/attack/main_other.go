//go:build !linux

// Command attack measures the cost of attacks over QUIC on a nearcall server. It needs Linux's
// /proc.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "attack: it measures processes through /proc, which Linux alone has")
	os.Exit(1)
}
